/* Pictures of any content: whatever a header says, its sides are in range, and nothing else passes.
 */
#include "cli/show/event_file.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    int32_t width = 0, height = 0;
    int rc = event_png_size(data, size, &width, &height);
    if (rc != 0 && rc != -ERR_FORMAT)
        abort();
    if (rc == 0 ? width < 1 || height < 1 : width || height)
        abort();
    return 0;
}
