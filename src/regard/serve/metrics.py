"""Metrics and logs of the API: Prometheus counters and histograms, and one JSON line for every request."""

import json
import logging
from datetime import UTC, datetime

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

SECONDS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60)
BATCH_SIZES = (1, 2, 4, 8, 16, 32, 64, 128)


class Metrics:
    """The metrics of one application; `GET /metrics` writes them out."""

    def __init__(self):
        self.registry = CollectorRegistry()
        self.requests = Counter("regard_requests", "Requests answered.", ["route", "status"], registry=self.registry)
        self.seconds = Histogram(
            "regard_request_seconds", "Latency.", ["route"], buckets=SECONDS, registry=self.registry
        )
        self.first_token = Histogram(
            "regard_first_token_seconds", "To the first token.", buckets=SECONDS, registry=self.registry
        )
        self.waiting = Gauge("regard_waiting_jobs", "Sentences or texts in the queue.", registry=self.registry)
        self.running = Gauge("regard_running_jobs", "Sentences or texts in running batches.", registry=self.registry)
        self.batch_size = Histogram(
            "regard_batch_size", "Jobs of a batch at a step.", buckets=BATCH_SIZES, registry=self.registry
        )
        self.tokens = Counter("regard_tokens", "Tokens read and written.", ["direction"], registry=self.registry)
        self.rejected = Counter("regard_rejected", "Requests refused as the queue was full.", registry=self.registry)
        self.cancelled = Counter("regard_cancelled", "Requests whose client has gone.", registry=self.registry)
        self.reloads = Counter("regard_reloads", "Models loaded again.", ["outcome"], registry=self.registry)

    def exposition(self) -> bytes:
        return generate_latest(self.registry)


class JsonFormatter(logging.Formatter):
    """A record as one line of JSON, with the fields of its `extra={"fields": {...}}`; no text of a client is logged."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "event": record.getMessage(),
            **vars(record).get("fields", {}),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line)


def log_json(level: int = logging.INFO) -> None:
    """The records of `regard` and of uvicorn as lines of JSON on stderr."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter())
    for name in ("regard", "uvicorn.error"):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(level)
