"""Next tokens, branches, beam trees, live generation (server-sent events) and comparison of two traces."""

import base64
import logging
from collections.abc import Generator, Iterator, Mapping
from dataclasses import replace
from difflib import SequenceMatcher
from itertools import zip_longest
from threading import Lock
from typing import Any

import torch
from torch import Tensor

from regard.data.tokenizers.base import BOS, EOS
from regard.decode.search import Constraints, DecodingRequest
from regard.decode.stepwise import PartialHypothesis, Sampling, mask_disallowed
from regard.decode.text_generation import text_constraints
from regard.decode.topk import log_probabilities
from regard.models.seq2seq import encode_sources, inference_mode
from regard.see.compare import Comparison, compare, output_items
from regard.see.edits import without_word_swaps
from regard.see.sites import AttentionRecorder, AttentionSite
from regard.see.trace import Trace, TraceRequest
from regard.serve.encoding import ApiResponse, RequestError, encode_json, float32_response, json_response
from regard.serve.handlers import (
    ApiRequest,
    AppState,
    TraceQuery,
    int_field,
    sampling_field,
    serialize_trace,
    text_field,
)
from regard.serve.trace_cache import CachedTrace
from regard.tasks.protocol import GenerationInput, token_label
from regard.tasks.registry import get_task

OPTIONS = 20


def next_tokens(request: ApiRequest) -> ApiResponse:
    """The probability of every token."""
    trace, sampling = request.cached.trace, sampling_field(request.query)
    return float32_response(trace.next_token_probabilities(parse_step(request), sampling).cpu().numpy())


def top_tokens(request: ApiRequest) -> ApiResponse:
    step, count = parse_step(request), request.query_int("count", OPTIONS, 1, 1000)
    return json_response(top_token_table(request.cached.trace, step, count, sampling_field(request.query)))


def top_token_table(trace: Trace, step: int, count: int, sampling: Sampling | None = None) -> dict[str, Any]:
    """The most probable tokens; with a sampling, also with which probability each would be drawn, and of how many."""
    found, drawn = (trace.next_token_probabilities(step, how) for how in (None, sampling))
    top = found.topk(min(count, len(found)))
    tokens = [
        {"token": trace.predictions.option_name(one), "id": one, "probability": share}
        | ({} if sampling is None else {"drawn": float(drawn[one])})
        for one, share in zip(top.indices.tolist(), top.values.tolist(), strict=True)
    ]
    return {"tokens": tokens, "chosen": chosen_token(trace, step), "kept": int((drawn > 0).sum())}


def chosen_token(trace: Trace, step: int) -> int | None:
    """The token of a step; None at the open end of a text."""
    ids = trace.generated_ids()
    if step < len(ids):
        return ids[step]
    return EOS if trace.predictions.rows[step] == "</s>" else None


def parse_step(request: ApiRequest) -> int:
    step, trace = request.path_int("step"), request.cached.trace
    trace.generated_ids()
    if step >= (count := len(trace.predictions.rows)):
        raise RequestError(f"there is no step {step}; they are counted from 0 to {count - 1}", 404)
    return step


def branch(request: ApiRequest) -> ApiResponse:
    """The same prefix up to a step, then another token."""
    cached = request.cached
    step, token = int_field(request.body, "step", 0, 2**31), request.body.get("token")
    # a token by its id, or as it is written
    token = token if isinstance(token, str) and token else int_field(request.body, "token", 0, 2**31)
    if step is None or token is None:
        raise RequestError('a branch has a step and a token, as in {"step": 2, "token": 17}')

    def make(number: str) -> CachedTrace:
        trace = cached.trace.branch(step, token)
        return replace(cached, id=number, trace=trace, lock=Lock())

    return json_response(serialize_trace(request.state.traces.get_or_create((cached.id, step, token), make)))


def beam_tree(request: ApiRequest) -> ApiResponse:
    return json_response({"steps": beam_steps(request.cached.trace)})


def beam_steps(trace: Trace) -> list[list[dict[str, Any]]]:
    if "more" in trace.request.task.inputs.options and not trace.request.more:
        return []
    tree = trace.beam_tree()
    return [
        [
            {
                "token": "</s>" if node.finished else trace.predictions.option_name(node.ids[-1]),
                "log_probability": node.log_probability,
                "score": node.score,  # the ranking score of a finished hypothesis
                "parent": node.parent,
                "chosen": tree.on_best_path(node),
                "finished": node.finished,
            }
            for node in step
        ]
        for step in tree.steps
    ]


# --- comparison of two traces ---


def compare_traces(request: ApiRequest) -> ApiResponse:
    ids = [text_field(request.body, name) for name in ("before", "after")]
    if not all(ids):
        raise RequestError('two traces are compared by their ids, as in {"before": "…", "after": "…"}')
    before, after = (request.state.traces[one].trace for one in ids)
    return json_response(trace_difference(before, after))


def trace_difference(before: Trace, after: Trace) -> dict[str, Any]:
    outputs = {
        "output_text": [before.output_text, after.output_text],
        "tokens": align_tokens(output_items(before), output_items(after)),
    }
    nothing = {"distribution": [], "at": None, "row": None, "weights": {}, "states": {}}
    try:
        found = compare(before, after)
    except ValueError as error:
        return outputs | nothing | {"note": str(error)}
    incomparable = before.request.task_model is not after.request.task_model and not same_vocabulary(before, after)
    if incomparable or not found.rows:
        return outputs | nothing | {"note": "the models have different vocabularies; only their outputs are compared"}
    return outputs | largest_changes(found) | inner_changes(found) | {"note": ""}


MAX_COMPARED_TOKENS = 512  # of texts whose weights and states are compared as well
MAX_COMPARED_LABELS = 64  # positions of states that are sent


def inner_changes(found: Comparison) -> dict[str, Any]:
    """What changed inside: of every head its weights, of every layer its states at each position."""
    trace = found.before
    sizes = [max(one.site(name).shape) for one in (trace, found.after) for name in one.attention_names]
    if max(sizes, default=0) > MAX_COMPARED_TOKENS:
        return {"weights": {}, "states": {}}
    states = {name: values[:MAX_COMPARED_LABELS].tolist() for name, values in found.state_changes().items()}
    return {"weights": {name: values.tolist() for name, values in found.weight_changes().items()}, "states": states}


def same_vocabulary(before: Trace, after: Trace) -> bool:
    """Whether two models have the same tokens or labels."""
    return all(
        before.predictions.option_name(n) == after.predictions.option_name(n)
        for n in range(before.predictions.logits.shape[1])
    )


def largest_changes(found: Comparison) -> dict[str, Any]:
    """The largest changes of probability: of the first row whose output differs, or of the row that changed most."""
    generated = found.before.output_ids is not None
    changes = found.probabilities.abs().sum(-1)
    differs = generated and found.before.output_ids != found.after.output_ids
    at = len(found.rows) - 1 if differs else int(changes.argmax())
    shares = [
        {"token": name, "before": was, "after": now, "change": now - was}
        for name, was, now in found.most_changed(at, OPTIONS)
    ]
    return {"distribution": shares, "at": at, "row": found.rows[at]}


def align_tokens(before: tuple[str, ...], after: tuple[str, ...]) -> list[dict[str, Any]]:
    """The aligned tokens of two outputs; "" where one has none."""
    found = []
    for kind, a, b, c, d in SequenceMatcher(None, before, after, autojunk=False).get_opcodes():
        for one, other in zip_longest(before[a:b], after[c:d], fillvalue=""):
            found.append({"before": one, "after": other, "same": kind == "equal"})
    return found


# --- live generation ---


def generate(request: ApiRequest) -> ApiResponse:
    return ApiResponse(event_stream(request.state, request.query), "text/event-stream")


def event_stream(state: AppState, query: Mapping[str, Any]) -> Generator[bytes]:
    """Errors are events too: a page cannot read the status of an event stream."""
    try:
        trace_query = state.parse({"beam": "1"} | dict(query) if is_greedy(state, query) else query)
        for token in stream_tokens(state, trace_query):
            yield server_sent_event("token", token)
        yield server_sent_event("done", serialize_trace(state.get_trace(trace_query)))
    except ValueError as error:
        yield server_sent_event("error", {"error": " ".join(str(error).split())})
    except Exception as error:  # any error must reach the page
        logging.getLogger("regard").exception("while generating")
        yield server_sent_event("error", {"error": f"internal error ({type(error).__name__}); see the server log"})


def server_sent_event(name: str, value: Any) -> bytes:
    return b"event: " + name.encode() + b"\ndata: " + encode_json(value) + b"\n\n"


def is_greedy(state: AppState, query: Mapping[str, Any]) -> bool:
    """Greedy search unless a beam is requested: it can be streamed."""
    task = get_task(state.models.model(query.get("model") or None).settings.task)
    return {"target", "beam"} <= {*task.inputs.options} and not query.get("beam")


def stream_tokens(state: AppState, query: TraceQuery) -> Iterator[dict[str, Any]]:
    """Greedy search token by token; the result of a beam search, or a target, as if it were one."""
    request = query.request
    task, given = request.task, request.task_input()
    if "beam" not in task.inputs.options:
        raise RequestError(f"a model for the task {task.name!r} generates no tokens; request its trace")
    generation = task.generation(request.task_model, given)
    if generation.beam != 1 or given.target is not None or request.sampling:
        yield from replay_tokens(state.get_trace(query), generation)
    elif generation.source is not None:
        yield from stream_target(request, generation, generation.source)
    else:
        yield from stream_text(request, generation)


def stream_target(
    request: TraceRequest, generation: GenerationInput, source: tuple[int, ...]
) -> Iterator[dict[str, Any]]:
    """Greedy search step by step, with the attention recorded."""
    model, tracing = generation.model, AttentionRecorder(without_word_swaps(request.edits))
    row = PartialHypothesis(DecodingRequest((), generation.prefix))
    with inference_mode(model), tracing.record(model):
        memory, lengths = encode_sources(model, [source])
        state = model.start(memory)
    token = BOS
    for step in range(generation.max_tokens):
        tracing.calls.clear()
        with inference_mode(model), tracing.record(model):  # not around the yield: another thread may resume it
            logits, state = model.step(torch.tensor([[token]], device=lengths.device), state, memory)
            scores = mask_disallowed(log_probabilities(logits[:, -1]), [row], Constraints())
        token = int(scores[0].argmax())
        yield chosen_token_event(step, token, scores, tracing, generation)
        if token == EOS:
            return
        row = row.extend(token, float(scores[0, token]))


def stream_text(request: TraceRequest, generation: GenerationInput) -> Iterator[dict[str, Any]]:
    """The same after the prompt of a language model."""
    model, tracing = generation.model, AttentionRecorder(without_word_swaps(request.edits))
    row, constraints = PartialHypothesis(DecodingRequest(())), text_constraints(generation.tokenizer)
    unread = list(generation.prefix)
    state = model.start(1)
    for step in range(generation.first_step, generation.first_step + generation.max_tokens):
        tracing.calls.clear()
        with inference_mode(model), tracing.record(model):
            x, state = model.decode_hidden(torch.tensor([unread], device=model.embedding.weight.device), state)
            scores = mask_disallowed(log_probabilities(model.logits(x[:, -1:])[:, 0]), [row], constraints)
        token = int(scores[0].argmax())
        if token in constraints.stop:
            return
        yield chosen_token_event(step, token, scores, tracing, generation)
        row, unread = row.extend(token, float(scores[0, token])), [token]


def replay_tokens(cached: CachedTrace, generation: GenerationInput) -> Iterator[dict[str, Any]]:
    """The result of beam search from a step on, as events: it is known only at the end."""
    trace, ids = cached.trace, cached.trace.generated_ids()
    sites = [
        site
        for site in trace.sites.values()
        if isinstance(site, AttentionSite) and site.site_name.queries == generation.axis
    ]
    # the text of a language model has no end
    for step in range(generation.first_step, len(ids) if generation.source is None else len(trace.predictions.rows)):
        one = ids[step] if step < len(ids) else EOS
        # the prompt of a language model precedes its first step
        row = mean_head_row(sites[-1], sites[-1].shape[0] - len(trace.predictions.rows) + step) if sites else None
        yield token_event(step, trace.predictions.rows[step], float(trace.next_token_probabilities(step)[one]), row)


def chosen_token_event(
    step: int, token: int, scores: Tensor, tracing: AttentionRecorder, generation: GenerationInput
) -> dict[str, Any]:
    label, row = token_label(generation.tokenizer, token), newest_attention_row(tracing, generation.axis)
    return token_event(step, label, float(scores[0, token].exp()), row)


def token_event(step: int, token: str, share: float, row: Tensor | None) -> dict[str, Any]:
    packed = None if row is None else base64.b64encode(row.cpu().numpy().astype("<f4").tobytes()).decode()
    return {"step": step, "token": token, "probability": share, "row": packed}


def newest_attention_row(tracing: AttentionRecorder, queries: str) -> Tensor | None:
    """The weights of the newest query in the last layer, averaged over the heads."""
    calls = [some[-1] for some in tracing.calls.values() if some[-1].site_name.queries == queries]
    sites = [site for site in calls if isinstance(site, AttentionSite)]
    return mean_head_row(sites[-1], sites[-1].shape[0] - 1) if sites else None


def mean_head_row(site: AttentionSite, query: int) -> Tensor:
    return torch.stack([site.row(head, query) for head in range(site.heads)]).mean(0)
