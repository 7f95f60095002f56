"""``torchx-kfp results``: show the results that stages have recorded."""

from __future__ import annotations

import contextlib
import operator
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from torchx_kfp.common.text import counted, did_you_mean, listed, printable
from torchx_kfp.contract.protocol import TRACKER_BASE_PARAMETER as TRACKER_BASE
from torchx_kfp.entrypoints.cli.display.printing import (
    is_number,
    print_csv,
    print_json,
    print_message,
    show_results,
    show_value,
    terminal_width,
    without_run,
)
from torchx_kfp.entrypoints.cli.flags import (
    Flags,
    csv_option,
    host_options,
    json_option,
    output_dir_option,
    refuse_empty,
    tracker_base_option,
)
from torchx_kfp.entrypoints.cli.resolver import Located, connect, locate, named_bases, usual_base
from torchx_kfp.entrypoints.cli.scheduling import at, keys_of_runs
from torchx_kfp.entrypoints.cli.selection import (
    Chosen,
    RunsHere,
    choose,
    last_attempts,
    nothing,
    open_recorder,
    parts,
    read,
    say_cached,
    say_if_misplaced,
    say_nothing_recorded,
    titled,
)
from torchx_kfp.errors import ArgumentError, KeyRefusedError, MissingResultsError, TrackerBaseError

if TYPE_CHECKING:
    from torchx_kfp.tracking import Result
    from torchx_kfp.tracking.recorder import Recorder

    #: Results by run id.
    Results = Mapping[str, Mapping[str, Result]]
    #: Tags by pipeline run.
    Tags = Mapping[str, Mapping[str, str]]

#: The names in an expression that are not names of results.
_OWN = ("run", "stage", "execution", "run_id")
#: The name of the map with the tags of a run.
_TAG = "tag"
#: The name of the map with all results of a run.
_RESULTS = "results"
_MACROS = {"all", "exists", "exists_one", "filter", "map", "reduce", "min"}
#: Operators of Python or SQL that people may write, and those of the language.
_HINTS = {"and": "&&", "or": "||", "not": "!", "=": "==", "is": "==", "<>": "!="}
#: The language's types, by celpy's names for them.
_KINDS = {"Int": "a whole number", "Double": "a number", "String": "text", "Bool": "true or false"}
_WORD = re.compile(r"\w+|<>|=|\S")


@click.command("results")
@click.argument("run", metavar="[RUN[/STAGE]]", required=False)
@click.option(
    "--stage", "stages", metavar="STAGE", multiple=True, help="Show only this stage. May be given several times."
)
@click.option(
    "--sort",
    "sorts",
    metavar="NAME",
    multiple=True,
    help="Sort by this result; -NAME puts the largest first. Further --sort options break ties.",
)
@click.option(
    "--where", "expressions", metavar="EXPRESSION", multiple=True, help="Show only runs for which this is true."
)
@click.option(
    "--schedule",
    metavar="NAME",
    callback=refuse_empty,
    help="Show the runs that this schedule of the host has started, the oldest first.",
)
@tracker_base_option
@output_dir_option
@json_option
@csv_option
@host_options
def results_command(
    run: str | None,
    stages: tuple[str, ...],
    sorts: tuple[str, ...],
    expressions: tuple[str, ...],
    schedule: str | None,
    base: str | None,
    output_dir: str,
    as_json: bool,
    as_csv: bool,
    flags: Flags,
) -> None:
    """Show the results that the stages of RUN have recorded.

    Without RUN, the command lists the runs that have recorded results under the tracker base: that of --tracker-base or
    of the settings, or else that of the newest run here. Cached stages of a run on this machine are shown with the
    results that they took from the cache.

    \b
    torchx-kfp results latest
    torchx-kfp results --tracker-base s3://bucket/results --stage train \\
        --where 'accuracy > 0.9' --sort -accuracy
    torchx-kfp results --schedule nightly --stage train

    EXPRESSION is written in the Common Expression Language. Its variables are the names of results, and run, stage,
    execution and run_id: 'epochs >= 10 && model == "resnet"'. For names that are not identifiers, write
    'results["l2norm/mean"] > 1.0'. The tags of a run are in tag: 'tag.team == "vision"'. A run that lacks a name or a
    tag does not match. If --where is given several times, all must be true.

    JSON maps run ids to results. CSV has the columns run_id, run, stage and execution, then one for each result.
    """
    name, located = "", None
    if schedule is not None:
        if run is not None:
            raise click.UsageError("--schedule names the runs: give no RUN.")
        recorder, chosen = _of_schedule(schedule, base, flags)
        keys = list(chosen.keys)
    else:
        if run is None and base is None:
            base = usual_base(output_dir)
        if run is None and base is None:
            raise click.UsageError("Give a RUN, such as latest, or --tracker-base for all runs there.")
        [located] = [Located(str(base), None, output_dir)] if run is None else locate([run], base, output_dir, flags)
        name = located.name.partition("/")[0]
        recorder = open_recorder(located.base)
        chosen = _chosen(recorder, located)
        keys = list(chosen.keys)
        if located.run is None and not (as_json or as_csv or stages or sorts or expressions):
            _list_runs(keys, RunsHere(output_dir, located.base, frozenset(keys)))
            say_if_misplaced(located.base, keys)
            return
    named = located.stages if located else {}
    found: Results = read(recorder, _of_stages(_in_order(keys, named), stages))
    tags: Tags = {}
    if any(_TAG in expression for expression in expressions):
        from torchx_kfp.tracking.store import pipeline_run

        tags = {run: record.tags for run, record in recorder.records(map(pipeline_run, keys), "tags").items()}
    for expression in expressions if found else ():
        found = {key: found[key] for key in _matching(expression, found, tags)}
    for sort in reversed(sorts if found else ()):
        found = _sorted(found, sort)
    if located is not None and not keys:
        say_nothing_recorded(located, chosen.name, "no results")
    elif not found:
        print_message(f"None of {counted(len(keys), 'run id')} matches.")
    say_cached(chosen)
    if as_json:
        print_json(found)
    elif as_csv:
        _print_csv(found)
    elif keys:
        _print_table(found, chosen, name, named)


def _chosen(recorder: Recorder, located: Located) -> Chosen:
    from torchx_kfp.tracking.store import pipeline_run

    run, output_dir = located.run, located.output_dir
    # Keys below the name are listed first: a base may have many other runs.
    keys: list[str] = []
    with contextlib.suppress(KeyRefusedError):  # a run cannot have this name, such as '..'
        keys = recorder.keys(run.rstrip("/") or run) if run is not None else []
    # The results that a cached stage was given are those of another run.
    if keys and run is not None and not (located.taken_over or Path(output_dir, run.partition("/")[0]).is_dir()):
        return Chosen(run.rstrip("/"), tuple(last_attempts(recorder, keys, run.rstrip("/"), located.run_ids)))
    if located.is_found:
        known = [key for its in located.runs for key in recorder.keys(its)]
        return choose(located, known, recorder)
    known = recorder.keys()
    if not known:
        if not (others := recorder.run_ids()):
            raise nothing(recorder.tracker_base, run)
        raise MissingResultsError(
            f"There are no results under {recorder.tracker_base!r}, only metadata, artifacts or sources of "
            f"{counted(len(others), 'run')}: {listed(others)}. `torchx-kfp show` shows them."
        )
    if run is None:
        replays = recorder.replays_among(known)
        if replays:
            runs = sorted({pipeline_run(key) for key in replays})
            names = printable(listed(runs))
            if replays.issuperset(known):
                raise MissingResultsError(
                    f"There are only replays under {recorder.tracker_base!r}: {names}. Name one to see its results."
                )
            which = "it" if len(runs) == 1 else "one"
            print_message(f"Left out: {counted(len(runs), 'replay')}. Name {which} to see its results: {names}.")
        known = [key for key in known if key not in replays]
        return Chosen("", tuple(last_attempts(recorder, known, located.base)))
    return choose(located, known, recorder)


def _of_schedule(name: str, base: str | None, flags: Flags) -> tuple[Recorder, Chosen]:
    """Return the records of the runs of a schedule, labeled with the times for which they were made.

    Raises:
        ArgumentError: there is no such schedule, or it has no tracker base.
        TrackerBaseError: only pods have the tracker base, or only the schedule names it.
        MissingResultsError: no run has recorded anything.
    """
    from torchx_kfp.execution.host.recurring import Schedules
    from torchx_kfp.execution.host.run_filter import RunFilter
    from torchx_kfp.execution.runs.source import missing, why_not_read

    host = connect(flags)
    schedules = Schedules(host)
    given = base or schedules.find(name).tracker_base
    if not given:
        raise ArgumentError(
            f"The pipeline of the schedule {name!r} has no parameter {TRACKER_BASE!r} with a value. Name "
            "the tracker base: --tracker-base."
        )
    if base is None and (why := why_not_read(given, named_bases([given], flags, ran_here=False))):
        raise TrackerBaseError(missing(given, why))
    recorder = open_recorder(given)
    where = RunFilter(archived=None, schedule_id=schedules.find_id(name))
    runs = sorted(host.list(where), key=lambda run: run.scheduled)
    if not runs:
        raise MissingResultsError(
            f"{host.connection.name} has no runs of the schedule {name!r}. `torchx-kfp schedule list` says if it is "
            "paused."
        )
    found = keys_of_runs(recorder, runs)
    labels = {key: f"{at(run.scheduled)}  {parts(key).get('stage', '')}".rstrip() for key, run in found.items()}
    if not labels:
        raise MissingResultsError(f"No run of {name!r} has results under {given!r}, of {counted(len(runs), 'run')}.")
    if without := len(runs) - len({run.run_id for run in found.values()}):
        print_message(
            f"{without:,} of {counted(len(runs), 'run')} without results: in progress, failed, or taken from the cache."
        )
    return recorder, Chosen(name, tuple(labels), labels=labels)


def _list_runs(keys: Iterable[str], here: RunsHere) -> None:
    from torchx_kfp.entrypoints.cli.display.tables import print_table
    from torchx_kfp.tracking.store import pipeline_run

    stages: dict[str, list[str]] = {}
    for key in keys:
        run = pipeline_run(key)
        stages.setdefault(run, []).append(parts(key).get("stage") or key[len(run) + 1 :].partition("/")[0])
    cached: dict[str, int] = {}
    for run in reversed(list(here.folders)):
        handed_on = here.handed_on(run)
        if handed_on:
            cached[run] = len(handed_on)
            stages.setdefault(run, []).extend(key.split("/")[1] for key in handed_on)
    rows = [
        (
            run,
            str(len(names) - cached.get(run, 0)),
            *([str(cached.get(run, 0))] if cached else []),
            " ".join(sorted(set(filter(None, names)))),
        )
        for run, names in sorted(stages.items())
    ]
    columns = ("run", "with results", *(["cached"] if cached else []), "stages")
    print_table(columns, rows, right=("with results", "cached"))


def _of_stages(keys: list[str], stages: Sequence[str]) -> list[str]:
    if not stages:
        return keys
    there = sorted({parts(key)["stage"] for key in keys if parts(key)})
    for stage in stages:
        if stage not in there:
            raise click.UsageError(
                f"--stage {stage!r} has no results here.{did_you_mean(stage, there)} "
                f"Stages: {listed(there, 20) or 'none'}."
            )
    return [key for key in keys if parts(key).get("stage") in stages]


def _values(found: Results) -> dict[str, dict[str, Any]]:
    """Return the values that an expression may use for each run: its results, and the parts of its run id."""
    taken = set(_names(found))
    own = {key: {"run_id": key, **parts(key)} for key in found}
    return {
        key: {**{name: part for name, part in own[key].items() if name not in taken}, **results}
        for key, results in found.items()
    }


def _names(found: Results) -> list[str]:
    """Return the names of all results."""
    return list(dict.fromkeys(name for results in found.values() for name in results))


def _sorted(found: Results, sort: str) -> Results:
    values, there = _values(found), _names(found)
    descending = sort.startswith("-") and sort not in there
    name = sort[1:] if descending else sort
    if name not in there and name not in _OWN:
        raise click.UsageError(f"--sort {sort!r} names {name!r}, {_unknown(name, there)}")
    groups: tuple[list[str], ...] = ([], [], [], [])
    numbers, nan, texts, missing = groups
    for key, row in values.items():
        value = row.get(name)
        if name not in row:
            missing.append(key)
        elif isinstance(value, int | float):
            (numbers if value == value else nan).append(key)
        else:
            texts.append(key)
    numbers.sort(key=lambda key: values[key][name], reverse=descending)
    texts.sort(key=lambda key: str(values[key][name]), reverse=descending)
    return {key: found[key] for group in groups for key in group}


def _print_csv(found: Results) -> None:
    names = _names(found)
    own = [name for name in ("run", "stage", "execution") if name not in names]
    rows = (
        [key, *(parts(key).get(name) for name in own), *(results.get(name) for name in names)]
        for key, results in found.items()
    )
    print_csv(["run_id", *own, *names], rows)


def _in_order(keys: list[str], named: Mapping[str, str]) -> list[str]:
    """Return run ids in the order of the names of their stages, fit[2] before fit[10], if these are known."""
    if not named.keys() >= {*keys}:
        return keys
    pieces = {key: re.split(r"([0-9]+)", named[key]) for key in keys}
    return sorted(keys, key=lambda key: [int(piece) if at % 2 else piece for at, piece in enumerate(pieces[key])])


def _print_table(found: Results, chosen: Chosen, name: str, stages: Mapping[str, str]) -> None:
    from torchx_kfp.entrypoints.cli.display.tables import fits, print_table

    cached = chosen.cached
    # A cached stage is shown in the run that took it from the cache.
    names_here = {key: cached.get(key, key) for key in found}
    runs = {parts(name).get("run") for name in names_here.values()}
    run = runs.pop() if len(runs) == 1 else None
    # Stages have the names of all other tables, if the run itself is known.
    known = stages if run else {}
    label = ("stage" if known.keys() >= {*found} else "stage/execution") if run else "run id"
    above = f"Run {titled(name, run)}" if run else ""
    ids = [
        known.get(key, name[len(run) + 1 :] if run else name) + (" (cached)" if key in cached else "")
        for key, name in names_here.items()
    ]
    if chosen.labels:
        run, label, above, ids = None, "run of", "", [chosen.labels[key] for key in found]
    names = _names(found)
    # Each column takes at least three characters, so a table with hundreds of them need not be measured.
    if (width := terminal_width()) is None or 4 * len(names) < width:
        cells = [
            [run_id, *(without_run(show_value(results[name]), run) if name in results else "" for name in names)]
            for run_id, results in zip(ids, found.values(), strict=True)
        ]
        kinds = {name: [results[name] for results in found.values() if name in results] for name in names}
        numbers = [name for name in names if all(map(is_number, kinds[name]))]
        texts = [name for name in names if any(isinstance(value, str) for value in kinds[name])]
        # A result may have the name of the first column.
        columns = [label if label not in names else "", *names]
        if fits(columns, cells, texts):
            print_table(columns, cells, right=numbers, cut=texts, above=above)
            return
    rows = [
        (run_id, without_run(show_results(results), run)) for run_id, results in zip(ids, found.values(), strict=True)
    ]
    print_table((label, "results"), rows, above=above)


def _matching(expression: str, found: Results, tags: Tags) -> list[str]:
    """Return the run ids for which an expression of ``--where`` is true. A run that lacks a name does not match.

    Raises:
        UsageError: the text is not an expression, names something that no run has, or is not a boolean.
    """
    import celpy
    from celpy.celparser import CELParseError

    from torchx_kfp.execution.pipeline.conditions import new_environment, number_operators
    from torchx_kfp.tracking.store import pipeline_run

    environment = new_environment()
    try:
        tree = environment.compile(expression)
    except CELParseError as error:
        raise _wrong(expression, _syntax_error(expression, error.column)) from None
    variables, fields = set(_variables(tree)), set(_fields(tree, _RESULTS))
    has_tags = _TAG in variables and _TAG not in _names(found)
    tagged = set(_fields(tree, _TAG)) if has_tags else set()
    names = variables - {_RESULTS, *([_TAG] if has_tags else [])}
    _check(expression, names, fields, _names(found))
    of_runs = {key: tags.get(pipeline_run(key), {}) if has_tags else {} for key in found}
    _check_tags(expression, tagged, {name for its in of_runs.values() for name in its})
    program = environment.program(tree, functions={**number_operators(), **_arithmetic()})
    missing = celpy.CELEvalError("missing")
    matches: list[str] = []
    failed: list[Exception] = []
    evaluated = False
    for key, values in _values(found).items():
        given = {name: _cel(values[name]) if name in values else missing for name in names}
        if _RESULTS in variables:
            given[_RESULTS] = celpy.celtypes.MapType({_cel(name): _cel(value) for name, value in found[key].items()})
        if has_tags:
            given[_TAG] = celpy.celtypes.MapType({_cel(name): _cel(value) for name, value in of_runs[key].items()})
        try:
            holds = program.evaluate(given)
        except (celpy.CELEvalError, ArithmeticError, TypeError, ValueError) as error:
            if names.issubset(values) and fields.issubset(found[key]) and tagged.issubset(of_runs[key]):
                failed.append(error)
            continue
        if not isinstance(holds, celpy.celtypes.BoolType):
            raise _wrong(expression, f"is not true or false but {holds!s}; compare it, such as {expression} > 0")
        evaluated = True
        if holds:
            matches.append(key)
    if failed:
        reason = _reason(failed[0])
        if not evaluated:
            raise _wrong(expression, f"cannot be evaluated: {reason}")
        print_message(f"--where {expression!r} cannot be evaluated for {counted(len(failed), 'run')}: {reason}.")
    return matches


def _check(expression: str, names: set[str], fields: set[str], there: Collection[str]) -> None:
    """Reject names that no run has: most of them are typos."""
    for name in (*sorted(names - {*there, *_OWN}), *sorted(fields - {*there})):
        composed = next((other for other in there if re.match(rf"{re.escape(name)}\W", other)), None)
        hint = f' Write results["{composed}"].' if composed and name in names else ""
        raise _wrong(expression, f"names {name!r}, {_unknown(name, there)}{hint}")


def _check_tags(expression: str, names: set[str], there: Collection[str]) -> None:
    """Reject tags that no run has."""
    for name in sorted(names - {*there}):
        known = f"Their tags: {listed(sorted(there), 20)}." if there else "They have none: torchx-kfp tag sets some."
        raise _wrong(expression, f"names the tag {name!r}, which no run here has.{did_you_mean(name, there)} {known}")


def _unknown(name: str, there: Collection[str]) -> str:
    """Return the end of a message about a result that no run has."""
    recorded = f"The recorded results are: {listed(sorted(there), 20)}." if there else "No results are recorded."
    return f"which no run here has recorded.{did_you_mean(name, there)} {recorded}"


def _variables(tree: Any, bound: frozenset[str] = frozenset()) -> Iterator[str]:
    """Yield the variables of an expression that its macros do not bind."""
    if not hasattr(tree, "children"):
        return
    if tree.data == "ident":
        name = str(tree.children[0])
        if name not in bound:
            yield name
        return
    children = tree.children
    if tree.data == "member_dot_arg" and str(children[1]) in _MACROS and len(children) > 2:
        yield from _variables(children[0], bound)
        variables = frozenset(map(str, _variables(children[2].children[0])))
        for child in children[2].children:
            yield from _variables(child, bound | variables)
        return
    for child in children:
        yield from _variables(child, bound)


def _fields(tree: Any, of: str) -> Iterator[str]:
    """Yield the names that constants select from the map, except those in ``has()``, which may be missing."""
    if not hasattr(tree, "children"):
        return
    if tree.data == "ident_arg" and str(tree.children[0]) == "has":
        return
    if tree.data in ("member_index", "member_dot") and _tokens(tree.children[0]) == [of]:
        text, *others = _tokens(tree.children[1])
        if not others and tree.data == "member_dot":
            yield text
        elif not others and re.fullmatch(r"""(["'])(?:(?!\1)[^\\])*\1""", text):
            yield text[1:-1]
    for child in tree.children:
        yield from _fields(child, of)


def _tokens(tree: Any) -> list[str]:
    return [str(tree)] if not hasattr(tree, "children") else list(map(str, tree.scan_values(lambda token: True)))


def _cel(value: Any) -> Any:
    import celpy

    try:
        return celpy.json_to_cel(value)
    except ValueError:  # an int of more than 64 bits
        return celpy.celtypes.DoubleType(value)


def _arithmetic() -> dict[str, Callable[[Any, Any], Any]]:
    """Return the language's arithmetic for mixed types of numbers: users do not see the types of results."""
    from celpy import celtypes

    numbers = (celtypes.IntType, celtypes.DoubleType)

    def mixed(function: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
        def apply(a: Any, b: Any) -> Any:
            if isinstance(a, numbers) and isinstance(b, numbers) and type(a) is not type(b):
                a, b = celtypes.DoubleType(a), celtypes.DoubleType(b)
            value = function(a, b)
            return celtypes.DoubleType(value) if type(value) is float else value  # celpy itself loses the type

        return apply

    return {
        "_+_": mixed(operator.add),
        "_-_": mixed(operator.sub),
        "_*_": mixed(operator.mul),
        "_/_": mixed(operator.truediv),
    }


def _syntax_error(expression: str, column: int | None) -> str:
    rest = expression[(column or 1) - 1 :]
    if not rest.strip():
        return "is empty; write, for example, 'accuracy > 0.9'"
    word = _WORD.match(rest.lstrip())
    if word and word[0].lower() in _HINTS:
        return f"is not an expression: at column {column}, write {_HINTS[word[0].lower()]} for {word[0]}"
    return f"is not a valid expression: syntax error at column {column}, at or after {rest[:20]!r}"


def _reason(error: Exception) -> str:
    args = error.args
    said = str(args[0]) if args else str(error)
    overload = re.search(r"applied to '\((.*)\)'", said)
    if overload:
        kinds = re.findall(r"celtypes\.(\w+)Type", overload[1])
        return f"no operation for {' and '.join(_KINDS.get(kind, kind.lower()) for kind in kinds)}"
    function = re.match(r"undeclared reference to '(\w+)'", said)
    return f"there is no function {function[1]!r}" if function else said.partition("\n")[0]


def _wrong(expression: str, text: str) -> click.UsageError:
    return click.UsageError(f"--where {expression!r} {text.removesuffix('.')}.")
