"""Tunnels through an HTTP proxy (CONNECT): for the bus on the event loop, for HTTPS in blocking calls.

Everything is bounded: the answer's size, and the time by the caller's deadline. A proxy that refuses or
speaks nonsense is told of in one sentence; its user and password stand in none.
"""

import asyncio
import http.client
import socket
import ssl
import time

from panal.core.errors import BusError
from panal.core.proxies import STRAIGHT, Proxies, Proxy, bracketed

HEAD_BYTES_MAX = 16 * 1024
_PIECE_BYTES = 4096
_BEGINNING = b"HTTP/1."
_REASON_CHARACTERS = 60


class Talk:
    """The question to a proxy and what is heard of its answer. No input or output of its own."""

    def __init__(self, proxy: Proxy, host: str, port: int) -> None:
        self._proxy = proxy
        self._target = f"{bracketed(host)}:{port}"
        self._heard = b""

    def question(self) -> bytes:
        """Raises BusError for a name that cannot be written."""
        try:
            target = self._target if self._target.isascii() else self._target.encode("idna").decode()
        except UnicodeError:
            target = ""
        if not target.isprintable() or " " in target or not target:
            raise BusError("The address is not one that a proxy can be asked for.")
        lines = [f"CONNECT {target} HTTP/1.1", f"Host: {target}"]
        if self._proxy.authorization:
            lines.append(f"Proxy-Authorization: {self._proxy.authorization}")
        return ("\r\n".join(lines) + "\r\n\r\n").encode("ascii")

    def hear(self, piece: bytes) -> bool:
        """Whether the tunnel is open now. An empty piece is the end. Raises BusError."""
        self._heard += piece
        if not self._heard[: len(_BEGINNING)] == _BEGINNING[: len(self._heard)]:
            raise BusError(f"What answers at {self._proxy} is no HTTP proxy.")
        head, end, rest = self._heard.partition(b"\r\n\r\n")
        if not end:
            if not piece:
                raise BusError(f"The proxy {self._proxy} hung up before it had answered.")
            if len(head) > HEAD_BYTES_MAX:
                raise BusError(f"The answer of the proxy {self._proxy} is too long.")
            return False
        self._judge(head.split(b"\r\n", 1)[0].decode("latin-1"))
        if rest:
            # The other end waits for us to begin, so these bytes are not from there.
            raise BusError(f"The proxy {self._proxy} sends more than its answer.")
        return True

    def _judge(self, status_line: str) -> None:
        _version, _, rest = status_line.partition(" ")
        status, _, reason = rest.partition(" ")
        if len(status) == 3 and status.isdecimal() and status.startswith("2"):
            return
        if status == "407" and self._proxy.authorization:
            raise BusError(f"The proxy {self._proxy} does not accept its user and password (407).")
        if status == "407":
            raise BusError(
                f"The proxy {self._proxy} asks for a user and a password (407): give them in node.proxy as "
                "http://user:password@host:port."
            )
        if status == "403":
            raise BusError(
                f"The proxy {self._proxy} does not let this machine reach {self._target} (403): ask whoever "
                "runs it to allow that."
            )
        if not (len(status) == 3 and status.isdecimal()):
            raise BusError(f"What answers at {self._proxy} is no HTTP proxy.")
        said = "".join(mark for mark in reason if mark.isprintable())[:_REASON_CHARACTERS]
        words = f"{status} {said}".strip()
        raise BusError(f"The proxy {self._proxy} did not reach {self._target}: it answered {words}.")


async def open_tunnel(proxy: Proxy, host: str, port: int) -> socket.socket:
    """A socket that leads to ``host``; the caller bounds the time. Raises BusError."""
    loop = asyncio.get_running_loop()
    talk = Talk(proxy, host, port)
    try:
        found = await loop.getaddrinfo(proxy.host, proxy.port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise _unreachable(proxy, error) from error
    failure: OSError = OSError("it has no address")
    for family, kind, protocol, _name, address in found:
        tunnel = socket.socket(family, kind, protocol)
        try:
            tunnel.setblocking(False)
            try:
                await loop.sock_connect(tunnel, address)
            except OSError as error:
                failure = error
                tunnel.close()
                continue
            await loop.sock_sendall(tunnel, talk.question())
            while not talk.hear(await loop.sock_recv(tunnel, _PIECE_BYTES)):
                pass
        except OSError as error:
            tunnel.close()
            raise _unreachable(proxy, error) from error
        except BaseException:
            tunnel.close()
            raise
        return tunnel
    raise _unreachable(proxy, failure) from failure


def open_tunnel_blocking(proxy: Proxy, host: str, port: int, timeout_s: float) -> socket.socket:
    """The same for a thread, within ``timeout_s`` once the proxy's name has an address. Raises BusError."""
    ends_s = time.monotonic() + timeout_s
    talk = Talk(proxy, host, port)
    try:
        tunnel = socket.create_connection((proxy.host, proxy.port), timeout_s)
    except OSError as error:
        raise _unreachable(proxy, error) from error
    try:
        tunnel.sendall(talk.question())
        heard = False
        while not heard:
            tunnel.settimeout(max(0.001, ends_s - time.monotonic()))
            heard = talk.hear(tunnel.recv(_PIECE_BYTES))
            if not heard and time.monotonic() > ends_s:
                raise TimeoutError("timed out")
        tunnel.settimeout(timeout_s)
    except TimeoutError:
        tunnel.close()
        raise BusError(f"The proxy {proxy} did not answer within {timeout_s:g} s.") from None
    except OSError as error:
        tunnel.close()
        raise _unreachable(proxy, error) from error
    except BaseException:
        tunnel.close()
        raise
    return tunnel


class _TunnelledConnection(http.client.HTTPSConnection):
    """HTTPS through a proxy; TLS is with the host itself, whose certificate and name are checked as usual."""

    def __init__(self, proxy: Proxy, host: str, port: int, timeout_s: float, context: ssl.SSLContext) -> None:
        super().__init__(host, port, timeout=timeout_s, context=context)
        self._proxy = proxy
        self._timeout_s = timeout_s
        self._tls = context

    def connect(self) -> None:
        """Raises BusError when the proxy is in the way, OSError for the rest."""
        tunnel = open_tunnel_blocking(self._proxy, self.host, self.port, self._timeout_s)
        try:
            self.sock = self._tls.wrap_socket(tunnel, server_hostname=self.host)
        except BaseException:
            tunnel.close()
            raise


def https_connection(
    host: str, port: int, timeout_s: float, context: ssl.SSLContext, proxies: Proxies = STRAIGHT
) -> http.client.HTTPSConnection:
    """Not connected yet; through the proxy where one leads there. Raises SettingsError."""
    proxy = proxies.of(host, port)
    if proxy is None:
        return http.client.HTTPSConnection(host, port, timeout=timeout_s, context=context)
    return _TunnelledConnection(proxy, host, port, timeout_s, context)


def _unreachable(proxy: Proxy, error: OSError) -> BusError:
    return BusError(f"The proxy {proxy} cannot be reached: {error}.")
