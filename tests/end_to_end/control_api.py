"""The control socket, as docs/control-socket.md describes it."""

import http.client
import json
import socket


class ApiError(Exception):
    def __init__(self, status, error):
        super().__init__(f"{status} {error.get('code')}: {error.get('message')}")
        self.status = status
        self.code = error.get("code")


class UnixConnection(http.client.HTTPConnection):
    def __init__(self, path, timeout):
        super().__init__("localhost", timeout=timeout)
        self.path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self.path))


class ControlApi:
    """One connection per request, so that control may be killed and started between any two."""

    def __init__(self, path, timeout_s=20):
        self.path = path
        self.timeout_s = timeout_s

    def request(self, method, path, body=None):
        connection = UnixConnection(self.path, self.timeout_s)
        try:
            connection.request(method, path, None if body is None else json.dumps(body),
                               {"Content-Type": "application/json"})
            response = connection.getresponse()
            answer = json.loads(response.read())
        except http.client.HTTPException as error:
            raise ConnectionError(f"control ended while it answered: {error!r}") from error
        finally:
            connection.close()
        if response.status >= 300:
            raise ApiError(response.status, answer.get("error", {}))
        return answer

    def get(self, path):
        return self.request("GET", path)

    def post(self, path, body):
        return self.request("POST", path, body)

    def patch(self, path, body):
        return self.request("PATCH", path, body)

    def delete(self, path):
        return self.request("DELETE", path)
