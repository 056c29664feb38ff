"""Published archives fetched by pooch: size cap, SHA-256 before anything reads them, atomic."""

import hashlib
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

from pdecnn.data.published import PublishedFolder, is_archive
from pdecnn.data.registry import find_dataset, published_versions, read_dataset
from pdecnn.errors import ConfigError, DataError, reason_of

Progress = Callable[[int, int], None]
"""Is told how many bytes are there, and of how many."""
_CHUNK_BYTES = 2**18
_TIMEOUT_SECONDS = 60


def download(
    name: str, folder: Path, *, url: str | None = None, progress: Progress | None = None
) -> Path:
    """Fetch the archive of a data set into a folder, and return its path.

    `url` is another place to fetch the same bytes from. The archive is written beside its place
    and moved there once it has the published SHA-256; whatever goes wrong leaves nothing behind,
    and an archive that is there already and intact is not fetched again.
    """
    published = published_versions(name)[0]
    try:
        import pooch
    except ModuleNotFoundError as error:
        raise ConfigError("downloads need pooch; install it with `pip install pooch`") from error
    pooch.get_logger().setLevel(logging.ERROR)
    try:
        pooch.retrieve(
            url=url or published.url,
            known_hash=f"sha256:{published.sha256}",
            fname=published.archive,
            path=folder,
            downloader=_Download(published, progress),
        )
    except DataError:
        raise
    except Exception as error:  # requests', urllib3's, the operating system's, pooch's own
        raise DataError(
            f"{url or published.url}: could not be fetched ({reason_of(error)}); nothing was "
            f"written to {folder}: try again, or fetch it by hand and pass its folder as --data"
        ) from error
    return folder / published.archive


class _Download:
    """What pooch calls to fill its temporary file: no more bytes than the archive has."""

    def __init__(self, published: PublishedFolder, progress: Progress | None) -> None:
        self.published, self.progress = published, progress

    def __call__(self, url: str, output_file: str | IO[bytes], pooch: Any) -> None:
        del pooch
        import requests

        if isinstance(output_file, str):
            os.unlink(output_file)  # pooch's own, which no umask lets others read
        with (
            requests.get(
                url, stream=True, timeout=_TIMEOUT_SECONDS, headers={"Accept-Encoding": "identity"}
            ) as response,
            open(output_file, "xb") if isinstance(output_file, str) else output_file as stream,
        ):
            response.raise_for_status()
            done, total = 0, self.published.num_bytes
            # The archive itself: some servers call a .tar.gz a tar in gzip encoding.
            for chunk in response.raw.stream(_CHUNK_BYTES, decode_content=False):
                done += len(chunk)
                if done > total:
                    raise DataError(
                        f"{url}: sends more than the {total:,} bytes of "
                        f"{self.published.archive}; it is another file: check the address"
                    )
                stream.write(chunk)
                if self.progress is not None:
                    self.progress(done, total)


def verify(name: str, folder: Path) -> str:
    """Check a data set and say what was found; a DataError where it is not as published.

    An archive must have the published SHA-256. Of unpacked files no checksums are published:
    they are read whole, and there must be as many images as published.
    """
    versions = published_versions(name)
    found = find_dataset(name, folder)
    if is_archive(found):
        try:
            with found.open("rb") as stream:
                digest = hashlib.file_digest(stream, "sha256").hexdigest()
        except OSError as error:
            raise DataError(
                f"{found}: cannot be read ({error.strerror}); check its permissions"
            ) from error
        for version in versions:
            if version.sha256 == digest:
                return f"{found}: the {version.version} version of {version.title}, as published"
        raise DataError(
            f"{found}: has SHA-256 {digest}, which is none that is published for "
            f"{versions[0].title}; delete it and run `pdecnn data download {name}`"
        )
    data = read_dataset(name, found)
    counts, wanted = (
        (len(data.train), len(data.test)),
        (versions[0].num_train, versions[0].num_test),
    )
    if counts != wanted:
        raise DataError(
            f"{found}: holds {counts[0]:,} training and {counts[1]:,} test images instead of "
            f"{wanted[0]:,} and {wanted[1]:,}; unpack it again"
        )
    return (
        f"{found}: {counts[0]:,} training and {counts[1]:,} test images of {versions[0].title}, "
        f"complete (only an archive has a published SHA-256)"
    )
