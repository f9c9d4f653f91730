"""Messages between the consumer's process and a worker, over a pair of sockets.

Both ends are ours and run the same code, so messages are pickles of tuples behind their length.
Sockets give what queues and semaphores do not: an end that died is noticed at once, and there is no
lock that it could have kept.
"""

from __future__ import annotations

import array
import socket
import struct
from collections import deque
from typing import Any

from towerpack.dataflow.parallel._pickling import dump, load

Message = tuple[Any, ...]

_LENGTH = struct.Struct("<I")
_CHUNK = 1 << 16
_MOST_FDS = 64


class Channel:
    """One end.

    Args:
        end: The socket, which the channel owns.
    """

    def __init__(self, end: socket.socket) -> None:
        self._socket = end
        self._bytes = bytearray()
        self._ready: deque[Message] = deque()
        self.fds: deque[int] = deque()
        """Descriptors that came with messages, in order. They are the receiver's to close."""

    def fileno(self) -> int:
        """For selectors."""
        return self._socket.fileno()

    def send(self, message: Message, fds: tuple[int, ...] = ()) -> None:
        """Send a message, with descriptors.

        Raises:
            OSError: The other end is gone.
        """
        body = dump(message)
        data = _LENGTH.pack(len(body)) + body
        if fds:
            rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))
            sent = self._socket.sendmsg([data], [rights])
            data = data[sent:]
        if data:
            self._socket.sendall(data)

    def receive(self) -> Message:
        """The next message; waits for it.

        Raises:
            EOFError: The other end is gone.
        """
        while not self._ready:
            self._read(0)
        return self._ready.popleft()

    def poll(self) -> list[Message]:
        """Messages that have come; there may be more.

        Raises:
            EOFError: The other end is gone, and nothing is left of what it sent.
        """
        if not self._ready:
            try:
                self._read(socket.MSG_DONTWAIT)
            except BlockingIOError:
                return []
        messages = list(self._ready)
        self._ready.clear()
        return messages

    def close(self) -> None:
        """Close this end: the other one will see the end of file."""
        self._socket.close()

    def _read(self, flags: int) -> None:
        try:
            space = socket.CMSG_LEN(_MOST_FDS * 4)
            data, ancillary, _, _ = self._socket.recvmsg(_CHUNK, space, flags)
        except ConnectionError as error:
            raise EOFError from error
        for level, kind, rights in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                numbers = array.array("i")
                numbers.frombytes(rights[: len(rights) // numbers.itemsize * numbers.itemsize])
                self.fds.extend(numbers)
        if not data:
            raise EOFError
        self._bytes += data
        self._take_apart()

    def _take_apart(self) -> None:
        begin = 0
        while len(self._bytes) - begin >= _LENGTH.size:
            (nbytes,) = _LENGTH.unpack_from(self._bytes, begin)
            end = begin + _LENGTH.size + nbytes
            if len(self._bytes) < end:
                break
            self._ready.append(load(memoryview(self._bytes)[begin + _LENGTH.size : end]))
            begin = end
        if begin:
            del self._bytes[:begin]
