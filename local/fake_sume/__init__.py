"""A fake Sume generation API: a real HTTP server that can be told to misbehave.

Run it with `python -m local.fake_sume`, or inside a test:

    with FakeSume() as fake:
        fake.on_submit(Behaviour(drop="after"))
        ...  # use fake.url
        assert fake.billed == 1
"""

from .behaviour import Behaviour, Weather, WebhookBehaviour
from .model import FakeJob
from .server import FakeSume
from .service import Received
from .webhooks import Delivery, event_body, event_id_of, signed_headers

__all__ = [
    "Behaviour",
    "Delivery",
    "FakeJob",
    "FakeSume",
    "Received",
    "Weather",
    "WebhookBehaviour",
    "event_body",
    "event_id_of",
    "signed_headers",
]
