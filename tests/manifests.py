"""The manifest of files that a test has changed by hand."""

from pdecnn.files import MANIFEST, manifest_bytes


def write_manifest(folder, names):
    """Record the SHA-256 of each named file of the folder as it is now."""
    contents = {name: (folder / name).read_bytes() for name in names}
    (folder / MANIFEST).write_bytes(manifest_bytes(contents))
