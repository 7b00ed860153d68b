#include "worker/fit/eigen.h"

#include <float.h>

#define QL_MAX 60 /* most steps for one eigenvalue; 2 are usual */

/* One Householder step: removes column `l` below its subdiagonal from the trailing part of a,
 * and leaves the unit reflector in row l, columns l+1.. */
static void reflect(double *a, uint32_t n, uint32_t l, double *diag, double *off, double *p)
{
    uint32_t m = n - l - 1; /* size of the trailing part */
    double *v = a + (size_t)l * n + l + 1;
    double norm = 0;
    diag[l] = a[(size_t)l * n + l];
    for (uint32_t j = 0; j < m; j++)
        norm += v[j] * v[j];
    norm = sqrt(norm);
    if (m <= 1 || norm == 0) {
        off[l] = m >= 1 ? v[0] : 0;
        memset(v, 0, m * sizeof(double)); /* no reflector */
        return;
    }
    off[l] = v[0] > 0 ? -norm : norm;
    v[0] -= off[l];
    double vv = 0;
    for (uint32_t j = 0; j < m; j++)
        vv += v[j] * v[j];
    double inv = 1 / sqrt(vv);
    for (uint32_t j = 0; j < m; j++)
        v[j] *= inv;
    /* B - 2 v qᵀ - 2 q vᵀ with p = B v, q = p - v (vᵀ p) */
    double vp = 0;
    for (uint32_t i = 0; i < m; i++) {
        const double *row = a + (size_t)(l + 1 + i) * n + l + 1;
        double sum = 0;
        for (uint32_t j = 0; j < m; j++)
            sum += row[j] * v[j];
        p[i] = sum;
        vp += sum * v[i];
    }
    for (uint32_t i = 0; i < m; i++)
        p[i] -= v[i] * vp;
    for (uint32_t i = 0; i < m; i++) {
        double *row = a + (size_t)(l + 1 + i) * n + l + 1;
        double vi = 2 * v[i], pi = 2 * p[i];
        for (uint32_t j = 0; j < m; j++)
            row[j] -= vi * p[j] + pi * v[j];
    }
}

/* z = the product of the reflectors, from the last to the first; row i of the identity times
 * them becomes column i, so z holds Qᵀ: its rows are rotated by the QL steps. */
static void accumulate(const double *a, uint32_t n, double *z, double *p)
{
    memset(z, 0, (size_t)n * n * sizeof(double));
    for (uint32_t i = 0; i < n; i++)
        z[(size_t)i * n + i] = 1;
    for (uint32_t l = n; l-- > 0;) {
        const double *v = a + (size_t)l * n + l + 1;
        uint32_t m = n - l - 1;
        if (m == 0 || v[0] == 0)
            continue;
        /* rows and columns l+1.. only: z is still the identity elsewhere */
        for (uint32_t i = 0; i < m; i++) {
            double *row = z + (size_t)(l + 1 + i) * n + l + 1;
            double sum = 0;
            for (uint32_t j = 0; j < m; j++)
                sum += row[j] * v[j];
            p[i] = 2 * sum;
            for (uint32_t j = 0; j < m; j++)
                row[j] -= p[i] * v[j];
        }
    }
}

/* Rotates rows i and i+1 of z. */
static void rotate(double *z, uint32_t n, uint32_t i, double c, double s)
{
    double *r0 = z + (size_t)i * n, *r1 = r0 + n;
    for (uint32_t j = 0; j < n; j++) {
        double t = r1[j];
        r1[j] = s * r0[j] + c * t;
        r0[j] = c * r0[j] - s * t;
    }
}

/* One implicit QL step with Wilkinson's shift on l..m of the tridiagonal. */
static void ql_step(double *diag, double *off, double *z, uint32_t n, uint32_t l, uint32_t m)
{
    double g = (diag[l + 1] - diag[l]) / (2 * off[l]);
    double r = hypot(g, 1);
    g = diag[m] - diag[l] + off[l] / (g + copysign(r, g));
    double s = 1, c = 1, p = 0;
    for (uint32_t i = m; i-- > l;) {
        double f = s * off[i], b = c * off[i];
        r = hypot(f, g);
        off[i + 1] = r;
        if (r == 0) { /* the matrix has split */
            diag[i + 1] -= p;
            off[m] = 0;
            return;
        }
        s = f / r;
        c = g / r;
        g = diag[i + 1] - p;
        r = (diag[i] - g) * s + 2 * c * b;
        p = s * r;
        diag[i + 1] = g + p;
        g = c * r - b;
        rotate(z, n, i, c, s);
    }
    diag[l] -= p;
    off[l] = g;
    off[m] = 0;
}

/* An off-diagonal entry counts as zero if it is negligible against the whole matrix: against its
 * neighbours alone, the rounding errors of a null space would never be. */
static int ql(double *diag, double *off, double *z, uint32_t n)
{
    double norm = 0;
    for (uint32_t i = 0; i < n; i++)
        norm = fmax(norm, fabs(diag[i]) + fabs(off[i]));
    if (!isfinite(norm))
        return -EDOM;
    for (uint32_t l = 0; l < n; l++) {
        for (unsigned steps = 0;; steps++) {
            uint32_t m = l;
            for (; m + 1 < n; m++)
                if (fabs(off[m]) <= DBL_EPSILON * norm)
                    break;
            if (m == l)
                break;
            if (steps == QL_MAX)
                return -EDOM;
            ql_step(diag, off, z, n, l, m);
        }
    }
    return 0;
}

/* Largest first, by selection: n swaps of rows. */
static void sort(double *values, double *z, uint32_t n, double *p)
{
    for (uint32_t i = 0; i + 1 < n; i++) {
        uint32_t best = i;
        for (uint32_t j = i + 1; j < n; j++)
            if (values[j] > values[best])
                best = j;
        if (best == i)
            continue;
        double v = values[i], *r0 = z + (size_t)i * n, *r1 = z + (size_t)best * n;
        values[i] = values[best];
        values[best] = v;
        memcpy(p, r0, n * sizeof(double));
        memcpy(r0, r1, n * sizeof(double));
        memcpy(r1, p, n * sizeof(double));
    }
}

int eigen_symmetric(double *a, uint32_t n, double *values)
{
    double *z = mem_try_array((size_t)n * n, sizeof(double));
    double *p = mem_try_array((size_t)n * 2 + 1, sizeof(double));
    int rc = z && p ? 0 : -ENOMEM;
    if (rc == 0) {
        double *off = p + n;
        for (uint32_t l = 0; l < n; l++)
            reflect(a, n, l, values, off, p);
        accumulate(a, n, z, p);
        rc = ql(values, off, z, n);
    }
    if (rc == 0) {
        sort(values, z, n, p);
        memcpy(a, z, (size_t)n * n * sizeof(double));
    }
    mem_free(z);
    mem_free(p);
    return rc;
}

static double dot(const double *a, const double *b, uint32_t n)
{
    double sum = 0;
    for (uint32_t i = 0; i < n; i++)
        sum += a[i] * b[i];
    return sum;
}

uint32_t eigen_orthonormal(double *q, uint32_t r, uint32_t n)
{
    uint32_t kept = 0;
    for (uint32_t i = 0; i < r; i++) {
        double *row = q + (size_t)i * n;
        double before = sqrt(dot(row, row, n));
        for (int twice = 0; twice < 2; twice++)
            for (uint32_t j = 0; j < i; j++) {
                const double *other = q + (size_t)j * n;
                double s = dot(row, other, n);
                for (uint32_t c = 0; c < n; c++)
                    row[c] -= s * other[c];
            }
        double norm = sqrt(dot(row, row, n));
        bool independent = norm > 1e-12 * before && norm > 0;
        for (uint32_t c = 0; c < n; c++)
            row[c] = independent ? row[c] / norm : 0;
        kept += independent;
    }
    return kept;
}
