"""The placements against the programs they claim to agree with, run from Debian's packages on
loopback: nginx's `hash ... consistent` and redis-server's CLUSTER KEYSLOT."""

import contextlib
import http.client
import json
import os
import pathlib
import random
import socket
import subprocess
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
MAGLEVCTL = pathlib.Path(os.environ.get("MAGLEV_BUILD", ROOT / "build")) / "control/maglevctl"
TIMEOUT_S = 30
KEYS = 3000
PLAIN = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789:._-"


def placed(keys, *options):
    """What `maglevctl owner` says of each key."""
    answers = []
    for first in range(0, len(keys), 1000):
        command = [MAGLEVCTL, "owner", "--json", *options, "--", *keys[first:first + 1000]]
        done = subprocess.run(command, check=True, capture_output=True, text=True,
                              timeout=TIMEOUT_S)
        answers += [json.loads(line) for line in done.stdout.splitlines()]
    assert len(answers) == len(keys)
    return answers


def free_ports(count):
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server(("127.0.0.1", 0)))
                   for _ in range(count)]
        return [s.getsockname()[1] for s in sockets]


@contextlib.contextmanager
def running(command, port, log):
    """The peer, until the end of the block; it listens when the block begins."""
    with open(log, "wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
    try:
        deadline = time.monotonic() + TIMEOUT_S
        while True:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            assert process.poll() is None and time.monotonic() < deadline, log.read_text()
            time.sleep(0.05)
        yield
    finally:
        process.terminate()
        try:
            process.wait(timeout=TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def nginx_configuration(directory, front, weights):
    upstreams = "\n".join(f"    server 127.0.0.1:{port} weight={weight};"
                          for port, weight in weights.items())
    servers = "\n".join(f'  server {{ listen 127.0.0.1:{port}; return 200 "127.0.0.1:{port}"; }}'
                        for port in weights)
    folders = "\n".join(f"  {name}_temp_path {directory}/{name};"
                        for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
    return f"""daemon off;
master_process off;
pid {directory}/pid;
error_log stderr;
events {{ worker_connections 512; }}
http {{
  access_log off;
  keepalive_requests 1000000;
{folders}
  upstream nodes {{
    hash $arg_k consistent;
{upstreams}
  }}
{servers}
  server {{ listen 127.0.0.1:{front}; location / {{ proxy_pass http://nodes; }} }}
}}
"""


def test_ketama_owns_what_nginx_sends_there(tmp_path):
    seed = random.randrange(1 << 32)
    print("seed", seed)
    generator = random.Random(seed)
    front, *ports = free_ports(8)
    weights = {port: weight for port, weight in zip(ports, (1, 2, 3, 1, 5, 1, 10))}
    keys = ["".join(generator.choices(PLAIN, k=generator.randint(1, 30))) for _ in range(KEYS)]
    answers = placed(keys, "--placement", "ketama",
                     "--nodes", ",".join(f"127.0.0.1:{port}" for port in weights),
                     "--weights", ",".join(map(str, weights.values())))

    configuration = tmp_path / "nginx.conf"
    configuration.write_text(nginx_configuration(tmp_path, front, weights))
    command = ["/usr/sbin/nginx", "-p", tmp_path, "-e", "stderr", "-c", configuration]
    seen = set()
    with running(command, front, tmp_path / "log"):
        connection = http.client.HTTPConnection("127.0.0.1", front, timeout=TIMEOUT_S)
        for key, answer in zip(keys, answers):
            connection.request("GET", f"/?k={key}")
            owner = connection.getresponse().read().decode()
            assert owner == answer["owner"], key
            seen.add(owner)
        connection.close()
    assert len(seen) == len(weights)


def redis_key(generator):
    alphabet = PLAIN + "é€ " + 4 * "{}"
    return "".join(generator.choices(alphabet, k=generator.randint(1, 30)))


def test_slots_are_those_of_redis(tmp_path):
    seed = random.randrange(1 << 32)
    print("seed", seed)
    generator = random.Random(seed)
    keys = [redis_key(generator) for _ in range(KEYS)]
    keys += ["{}", "{}a", "a{}b{c}", "{a", "a}", "}{a}", "{{a}}", "{a}{b}", "x{a}y"]
    answers = placed(keys, "--placement", "slots", "--nodes", "a,b,c")
    tagged = sum("{" in key and "}" in key[key.index("{"):] for key in keys)
    assert tagged > KEYS / 10

    port, bus = free_ports(2)
    command = ["/usr/bin/redis-server", "--port", str(port), "--bind", "127.0.0.1", "--save", "",
               "--cluster-enabled", "yes", "--cluster-port", str(bus), "--dir", tmp_path]
    with running(command, port, tmp_path / "log"), \
            socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT_S) as connection:
        replies = connection.makefile("rb")
        for key, answer in zip(keys, answers):
            words = [b"CLUSTER", b"KEYSLOT", key.encode()]
            connection.sendall(b"*3\r\n" + b"".join(b"$%d\r\n%s\r\n" % (len(w), w) for w in words))
            assert replies.readline() == b":%d\r\n" % answer["slot"], key
