"""The network between workers and their coordinator: a TCP proxy that delays, loses, holds back and cuts, as set for each machine."""
import asyncio
import random
import threading

AGAIN_S = 0.2  # until TCP sends again what was lost
CHUNK, CHUNKS = 1 << 16, 64  # bytes under way in one direction: at most their product


class Way:
    """The connections of one machine.  Its attributes may be changed at any time, from any thread."""

    def __init__(self):
        self.delay = 0.0  # seconds, each way
        self.loss = 0.0  # share of chunks that come after AGAIN_S only
        self.shut = set()  # of "up" and "down": nothing passes, and the connections stay
        self.open = set()  # writers, both ends of each connection
        self.felt = dict.fromkeys(("up", "down", "late", "reset"), 0)  # chunks that did not pass, that came late; connections that were cut


class Proxy:
    """Listens on given ports of `host` and connects to the same ports of `target`; runs in the namespace that `inside()` enters."""

    def __init__(self, inside, host, target, machines, seed):
        self.inside, self.host, self.target = inside, host, target
        self.ways = {address: Way() for address in machines}
        self.rng = random.Random(seed)
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self):
        with self.inside():
            self.loop.run_forever()

    def listen(self, *ports):
        async def begin():
            for port in ports:
                await asyncio.start_server(lambda r, w, p=port: self._serve(r, w, p), self.host, port)
        asyncio.run_coroutine_threadsafe(begin(), self.loop).result(10)

    def cut(self, machine):
        """Resets all connections."""
        def reset():
            self.ways[machine].felt["reset"] += len(self.ways[machine].open)
            for writer in list(self.ways[machine].open):
                writer.transport.abort()
        self.loop.call_soon_threadsafe(reset)

    def close(self):
        async def end():
            tasks = asyncio.all_tasks() - {asyncio.current_task()}
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        asyncio.run_coroutine_threadsafe(end(), self.loop).result(10)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()
        self.loop.close()

    async def _serve(self, reader, writer, port):
        way = self.ways.setdefault(writer.get_extra_info("peername")[0], Way())
        try:
            far_reader, far = await asyncio.open_connection(self.target, port)
        except OSError:
            writer.transport.abort()
            return
        way.open |= {writer, far}
        try:
            await asyncio.gather(self._carry(reader, far, way, "up"), self._carry(far_reader, writer, way, "down"))
        except OSError:
            pass
        finally:
            way.open -= {writer, far}
            writer.transport.abort()
            far.transport.abort()

    async def _carry(self, reader, writer, way, direction):
        under_way = asyncio.Queue(CHUNKS)

        async def arrive():
            while True:
                due, data = await under_way.get()
                await asyncio.sleep(due - self.loop.time())
                way.felt[direction] += direction in way.shut
                while direction in way.shut:
                    await asyncio.sleep(0.05)
                if not data:
                    writer.write_eof()
                    return
                writer.write(data)
                await writer.drain()

        async def leave():
            data = b"begin"
            while data:
                data = await reader.read(CHUNK)
                lost = self.rng.random() < way.loss
                way.felt["late"] += lost or way.delay > 0
                await under_way.put((self.loop.time() + way.delay + AGAIN_S * lost, data))
        await asyncio.gather(arrive(), leave())
