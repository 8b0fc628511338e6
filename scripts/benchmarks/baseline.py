"""The bare loop: pycurl handles on threads that send ready-made bodies and neither parse nor write anything.

What this library can do on this machine in this minute. A process of its own:
`python -m scripts.benchmarks.baseline LOAD URL` prints `{"wall": seconds, "cpu": seconds}` of the loop alone.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from queue import Empty, SimpleQueue

import pycurl

from scripts.benchmarks.loads import LARGE, LOADS, SMALL, Load
from scripts.benchmarks.suites import bodies


def run(load: Load, url: str) -> dict[str, float]:
    if load.workers >= 1024:
        sys.setswitchinterval(0.1)  # with so many threads the default 5 ms makes them fight over the interpreter
    threading.stack_size(512 * 1024)
    waiting: SimpleQueue[bytes] = SimpleQueue()
    for body in bodies(load):
        waiting.put(body)

    def work() -> None:
        curl = pycurl.Curl()
        curl.setopt(pycurl.URL, f"{url}/chat/completions")
        curl.setopt(pycurl.NOSIGNAL, 1)
        curl.setopt(pycurl.NOPROXY, "*")
        curl.setopt(pycurl.HTTPHEADER, ["Content-Type: application/json", "Expect:"])
        curl.setopt(pycurl.WRITEFUNCTION, len)
        while True:
            try:
                body = waiting.get_nowait()
            except Empty:
                return
            curl.setopt(pycurl.POSTFIELDS, body)
            curl.perform()

    cpu, started = time.process_time(), time.monotonic()
    threads = [threading.Thread(target=work) for _ in range(load.workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return {"wall": time.monotonic() - started, "cpu": time.process_time() - cpu}


def main() -> None:
    name, url = sys.argv[1:]
    load = next(load for load in (*LOADS, SMALL, LARGE) if load.name == name)
    print(json.dumps(run(load, url)))


if __name__ == "__main__":
    main()
