"""A disk that forgets: what it may hold after a power cut, from a trace of everything that was done to it (trace.c).

What was written to a file is on the disk once the file was synced, and a name in a folder once the folder was. All else
may be there or not, each by itself, in any order: names without what is in the files, zeros where it was to be, one
rename and not the one before it. That is what POSIX promises and no more; real file systems keep more of it.

Stores through mapped memory are not in a trace, and neither is what the C library writes for
fwrite: compare `Disk.now` with what is there.
"""

import hashlib
import os
import random
import struct
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

HEADER = struct.Struct("=cQq3I")
PAGE = 4096  # that is torn in two [bytes]
Tree = dict[str, bytes | str | None]  # by path: of a file its content, of a link its target, None: a folder
Changes = Sequence[tuple[str, int | None]]  # names of a folder, and what they are of now; None: they are gone
AWAY_S = 3600.0  # from the cut to the next start
KINDS = ("nothing", "names", "contents", "torn", "some", "others")


class Operation(NamedTuple):
    """One line of a trace. kind: Create, Write, Truncate, Fsync, Rename, Unlink, Mkdir, Link or Symlink."""

    kind: str
    inode: int
    at: int
    path: str
    other: str
    data: bytes

    def __str__(self) -> str:
        what = {"W": f"write {len(self.data)} bytes", "T": "truncate", "F": "fsync"}.get(self.kind)
        return what or f"{self.kind} {self.path.rpartition('/')[2]} {self.other.rpartition('/')[2]}".strip()


def operations(trace: Path) -> list[Operation]:
    """Every operation of a trace."""
    content, place, found = trace.read_bytes(), 0, []
    while place < len(content):
        kind, inode, at, *sizes = HEADER.unpack_from(content, place)
        place += HEADER.size
        parts = []
        for size in sizes:
            parts.append(content[place : place + size])
            place += size
        path, other = (os.fsdecode(part) for part in parts[:2])
        found.append(Operation(kind.decode(), inode, at, path, other, parts[2]))
    return found


class File:
    """Content now, on the disk, and what was done since it was synced: (offset, data), or (size, None) for a cut."""

    def __init__(self, content: bytes = b"") -> None:
        self.now, self.synced = bytearray(content), content
        self.pending: list[tuple[int, bytes | None]] = []

    def do(self, at: int, data: bytes | None) -> None:
        _apply(self.now, at, data)
        self.pending.append((at, data))

    def sync(self) -> None:
        self.synced, self.pending = bytes(self.now), []

    def after(self, choose: random.Random | None) -> bytes:
        """What a cut leaves of it: a part of what was not synced, the last page of which is torn; at random how much,
        or half."""
        content = bytearray(self.synced)
        n = choose.randint(0, len(self.pending)) if choose is not None else (len(self.pending) + 1) // 2
        for at, data in self.pending[:n]:
            _apply(content, at, data)
        if self.pending[:n] and (data := self.pending[n - 1][1]):
            torn = self.pending[n - 1][0] + max(0, len(data) - PAGE // 2)
            content[torn:] = bytes(max(0, len(content) - torn))
        if choose is None or choose.random() < 0.5:  # its size came to the disk before what is in it
            content += bytes(max(0, len(self.now) - len(content)))
        return bytes(content)


class Folder:
    """Names now, on the disk, and changes since it was synced, each of which is there as a whole or not at all."""

    def __init__(self) -> None:
        self.now: dict[str, int] = {}
        self.synced: dict[str, int] = {}
        self.pending: list[Changes] = []

    def do(self, *changes: tuple[str, int | None]) -> None:
        _rename(self.now, changes)
        self.pending.append(changes)

    def sync(self) -> None:
        self.synced, self.pending = dict(self.now), []


def _apply(content: bytearray, at: int, data: bytes | None) -> None:
    if data is None:
        del content[at:]
        content.extend(bytes(max(0, at - len(content))))
        return
    content.extend(bytes(max(0, at + len(data) - len(content))))
    content[at : at + len(data)] = data


def _rename(names: dict[str, int], changes: Changes) -> None:
    for name, node in changes:
        if node is None:
            names.pop(name, None)
        else:
            names[name] = node


class Disk:
    """What is below `root`, as it was before a trace and as it was then changed."""

    def __init__(self, root: Path, before: "Before", trace: list[Operation]) -> None:
        self.root, self.before, self.trace = str(root), before, trace

    def states(self, kinds: tuple[str, ...] = KINDS, seed: int = 0) -> Iterator[tuple[int, str, Tree]]:
        """Every different content that a power cut may leave: before which operation, its name, and what it is."""
        seen = set[str]()
        self._begin()
        for number in range(len(self.trace) + 1):
            where = str(self.trace[number]) if number < len(self.trace) else "the end"
            for kind in kinds:
                tree = self._after(kind, random.Random(f"{seed} {number} {kind}"))
                if (key := digest(tree)) not in seen:
                    seen.add(key)
                    yield number, f"{number}, before {where}: {kind}", tree
            if number < len(self.trace):
                self._do(self.trace[number])

    def now(self) -> Tree:
        """What is there at the end where nothing is lost, as the trace says."""
        self._begin()
        for operation in self.trace:
            self._do(operation)
        return self._after("everything", random.Random(0))

    # ---- the model: numbers of its own for files, as inodes are used again

    def _begin(self) -> None:
        self._nodes: dict[int, File | Folder | str] = {0: Folder()}
        self._by_inode = {self.before.inodes.get("", 0): 0}
        for path, content in self.before.tree.items():
            node = Folder() if content is None else File(content) if isinstance(content, bytes) else content
            folder, name = self._place(f"{self.root}/{path}")
            self._add(folder, name, node, self.before.inodes[path])
            folder.sync()

    def _add(self, folder: Folder, name: str, node: "File | Folder | str", inode: int) -> None:
        number = len(self._nodes)
        self._nodes[number] = node
        self._by_inode[inode] = number
        folder.do((name, number))

    def _place(self, path: str) -> tuple[Folder, str]:
        parts = Path(path).relative_to(self.root).parts
        folder = self._nodes[0]
        for part in parts[:-1]:
            assert isinstance(folder, Folder)
            folder = self._nodes[folder.now[part]]
        assert isinstance(folder, Folder), path
        return folder, parts[-1]

    def _find(self, operation: Operation) -> "File | Folder | None":
        node = self._nodes.get(self._by_inode.get(operation.inode, -1))
        assert not isinstance(node, str)
        return node

    def _do(self, operation: Operation) -> None:
        kind, path = operation.kind, operation.path
        if kind == "M" and path == self.root:
            self._by_inode[operation.inode] = 0
        elif kind in "CMS":
            node = File() if kind == "C" else Folder() if kind == "M" else operation.other
            self._add(*self._place(path), node, operation.inode)
        elif kind == "U":
            folder, name = self._place(path)
            folder.do((name, None))
        elif kind == "L":
            folder, name = self._place(path)
            target, new = self._place(operation.other)
            target.do((new, folder.now[name]))
        elif kind == "R":
            (old, name), (new, other) = self._place(path), self._place(operation.other)
            number = old.now[name]
            if old is new:
                old.do((name, None), (other, number))
            else:
                new.do((other, number))
                old.do((name, None))
        elif (node := self._find(operation)) is not None:
            if kind == "F":
                node.sync()
            elif isinstance(node, File):
                node.do(operation.at, operation.data if kind == "W" else None)

    def _after(self, kind: str, choose: random.Random) -> Tree:
        tree: Tree = {}

        def names(folder: Folder) -> dict[str, int]:
            if kind in ("names", "torn", "everything"):
                return folder.now
            kept = dict(folder.synced)
            for changes in folder.pending if kind in ("some", "others") else ():
                if choose.random() < 0.5:
                    _rename(kept, changes)
            return kept

        def walk(folder: Folder, prefix: str) -> None:
            for name, number in sorted(names(folder).items()):
                node = self._nodes[number]
                if isinstance(node, Folder):
                    tree[f"{prefix}{name}"] = None
                    walk(node, f"{prefix}{name}/")
                elif isinstance(node, str) or not node.pending:
                    tree[f"{prefix}{name}"] = node if isinstance(node, str) else bytes(node.now)
                elif kind in ("contents", "everything"):
                    tree[f"{prefix}{name}"] = bytes(node.now)
                elif kind in ("nothing", "names"):
                    tree[f"{prefix}{name}"] = node.synced
                else:
                    tree[f"{prefix}{name}"] = node.after(None if kind == "torn" else choose)

        root = self._nodes[0]
        assert isinstance(root, Folder)
        walk(root, "")
        return tree


class Before(NamedTuple):
    """What was below a folder, and the inodes by path; "": its own."""

    tree: Tree
    inodes: dict[str, int]


def read(root: Path) -> Before:
    """Read everything below a folder, which need not be there."""
    before = Before({}, {})
    for path in (root, *sorted(root.rglob("*"))) if root.is_dir() else ():
        name = str(path.relative_to(root)) if path != root else ""
        before.inodes[name] = os.lstat(path).st_ino
        if path != root:
            is_link = path.is_symlink()
            before.tree[name] = os.readlink(path) if is_link else path.read_bytes() if path.is_file() else None
    return before


def write(tree: Tree, root: Path) -> None:
    """Put a tree in place of what is there."""
    subprocess.run(["rm", "-rf", str(root)], check=True)
    root.mkdir(parents=True)
    for name, content in tree.items():  # a folder comes before what is in it
        path = root / name
        if content is None:
            path.mkdir()
        elif isinstance(content, str):
            path.symlink_to(content)
        else:
            path.write_bytes(content)
        if not path.is_symlink():
            os.utime(path, (path.stat().st_atime, path.stat().st_mtime - AWAY_S))


def digest(tree: Tree) -> str:
    total = hashlib.sha256()
    for name, content in sorted(tree.items()):
        part = content.encode() if isinstance(content, str) else content
        total.update(f"{name}\0{type(content).__name__}\0".encode() + hashlib.sha256(part or b"").digest())
    return total.hexdigest()
