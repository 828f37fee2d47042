"""A process that is no more than a health service: ``python -m tests.support.stub_service HOST:PORT [FLAG...]``.

Flags: ``child`` starts a child of its own and prints its pid; ``stubborn`` ignores SIGTERM; ``broken`` ends with exit
code 7 at once; ``never-ready`` serves, and says NOT_SERVING.
"""

import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc


def main(address: str, flags: set[str]) -> int:
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: None if "stubborn" in flags else stop.set())
    if "broken" in flags:
        sys.stderr.write('{"level": "error", "event": "this service is broken"}\n')
        return 7
    if "child" in flags:
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        sys.stdout.write(f"child {child.pid}\n")
        sys.stdout.flush()
    server = grpc.server(ThreadPoolExecutor(4), options=[("grpc.so_reuseport", 0)])
    servicer = health.HealthServicer()
    status = health_pb2.HealthCheckResponse
    servicer.set("", status.NOT_SERVING if "never-ready" in flags else status.SERVING)
    health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
    server.add_insecure_port(address)
    server.start()
    stop.wait()
    server.stop(0)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], set(sys.argv[2:])))
