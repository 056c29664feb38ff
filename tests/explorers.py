"""Small networks to explore, and the server that shows them."""

import http.client
import json
import threading
from base64 import b64decode
from contextlib import contextmanager
from io import BytesIO
from types import SimpleNamespace
from urllib.parse import urlencode, urlsplit

import numpy as np
import torch
from PIL import Image

import pdecnn
from pdecnn.data.image_set import ImageSet
from pdecnn.explorer.answers import Explorer, explore_together
from pdecnn.explorer.server import ExplorerServer
from pdecnn.explorer.subject import Subject

SIZES = {1: (20,), 2: (12, 10), 3: (6, 8, 8)}
CLASS_NAMES = ("circle", "square", "<b>bold</b>")


def make_subject(
    dynamics="hamiltonian", *, dimension=2, in_channels=3, dtype=torch.uint8, **settings
):
    """A network with random weights and six random test samples."""
    torch.manual_seed(0)
    size = SIZES[dimension]
    config = {"channels": (4, 6, 6), "num_steps": 3, "step_size": 0.5} | settings
    network = pdecnn.create_model(
        f"{dynamics}_digits",
        in_channels=in_channels,
        num_classes=len(CLASS_NAMES),
        dimension=dimension,
        **config,
    )
    network.preprocessing = pdecnn.Preprocessing(size=size, class_names=CLASS_NAMES)
    shape = (6, in_channels, *size)
    if dtype == torch.uint8:
        images = torch.randint(0, 256, shape, dtype=dtype)
    else:
        images = 5 * torch.randn(shape)
    test = ImageSet(images=images, labels=torch.tensor([2, 2, 0, 1, 0, 2]), class_names=CLASS_NAMES)
    return Subject(name=dynamics, network=network.eval(), test=test, notice=None)


@contextmanager
def serving(explorer):
    """A server at work in a thread."""
    explorers = [explorer] if isinstance(explorer, Explorer) else explorer
    with ExplorerServer(explorers) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


@contextmanager
def serving_subject(*arguments, **settings):
    """`serving` of `make_subject`."""
    with serving(Explorer(make_subject(*arguments, **settings))) as server:
        yield server


@contextmanager
def serving_together(*dynamics, **settings):
    """`serving` of several networks on the same samples."""
    with serving(explore_together([make_subject(one, **settings) for one in dynamics])) as server:
        yield server


def request(server, path="", *, method="GET", body=None, headers=None, token=None, **query):
    """Ask the server as a browser would, but for what is said otherwise."""
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=100)
    target = f"/{server.token if token is None else token}/{path}"
    if query:
        target += f"?{urlencode(query)}"
    given = {"Origin": f"http://127.0.0.1:{server.server_port}"} if method == "POST" else {}
    connection.request(method, target, body, given | (headers or {}))
    response = connection.getresponse()
    content = response.read()
    connection.close()
    is_json = response.headers["Content-Type"] == "application/json"
    return SimpleNamespace(
        status=response.status,
        headers=response.headers,
        content=content,
        json=json.loads(content) if is_json else None,
    )


def origin(server):
    """Scheme, host and port."""
    parts = urlsplit(server.url)
    return f"{parts.scheme}://{parts.netloc}"


def decoded(picture):
    """The values that a picture stands for."""
    levels = np.frombuffer(b64decode(picture["data"]), np.uint8).reshape(picture["shape"])
    return picture["low"] + levels / 254 * (picture["high"] - picture["low"])


def step_between_levels(picture):
    """What rounding to a byte may change, and a little more."""
    return 0.51 * (picture["high"] - picture["low"]) / 254


def png(height=9, width=7, colour=(255, 0, 0)):
    """The content of a PNG file."""
    stream = BytesIO()
    Image.new("RGB", (width, height), colour).save(stream, "PNG")
    return stream.getvalue()
