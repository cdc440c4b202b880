"""Files at addresses with credentials, `guarded://user:secret@host/photos/a.png`, which can be made to fail."""

from __future__ import annotations

from typing import Any, ClassVar

import fsspec
from fsspec.implementations.memory import MemoryFileSystem

PREFIX = "guarded://user:secret@host"


class GuardedFiles(MemoryFileSystem):
    """Files in memory; those whose names have "closed" in them can't be read or written, as errors say indiscreetly."""

    protocol = "guarded"
    sizes: ClassVar[dict[str, int]] = {}
    """Sizes that listings state, by the end of the name."""
    fetched: ClassVar[list[str]] = []
    """Names of the files that were read whole."""

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        if path.startswith("guarded://"):
            path = "/" + path.removeprefix("guarded://").partition("/")[2]
        return super()._strip_protocol(path)

    def info(self, path: str, **options: Any) -> dict[str, Any]:
        return self._sized(super().info(path, **options))

    def ls(self, path: str, detail: bool = True, **options: Any) -> list[Any]:
        found = super().ls(path, detail=detail, **options)
        return list(map(self._sized, found)) if detail else found

    def cat_file(self, path: str, **options: Any) -> bytes:
        self.fetched.append(path)
        self._refuse(path)
        return super().cat_file(path, **options)

    def _open(self, path: str, mode: str = "rb", **options: Any) -> Any:
        self._refuse(path)
        return super()._open(path, mode, **options)

    def _sized(self, info: dict[str, Any]) -> dict[str, Any]:
        ends = [size for end, size in self.sizes.items() if info["name"].endswith(end)]
        return {**info, "size": ends[0]} if ends else info

    @staticmethod
    def _refuse(path: str) -> None:
        if "closed" in path:
            raise RuntimeError(f"403 for {PREFIX}{path} with the password secret")


fsspec.register_implementation("guarded", GuardedFiles, clobber=True)
