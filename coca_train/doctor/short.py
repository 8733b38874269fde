"""The doctor's short form: the first lines of a job's log. Nothing is measured."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict

from coca_train.config.schema import Config
from coca_train.doctor import machines
from coca_train.doctor.facts import Facts, Pins, facts, pins
from coca_train.doctor.table import findings
from coca_train.runtime import dist

MAIN = ("python", "torch", "deepspeed")


def announce(config: Config) -> None:
    """COLLECTIVE. Where the ranks are, on what, with which versions, and what of it is out of line, on rank 0."""
    own = pins()
    # The whole list of pins takes a second from a network folder; what a training imports does not.
    wanted = Pins({name: own.required[name] for name in own.required if name in own.always}, {}, own.always)
    gathered = dist.all_gather_object(asdict(facts(config.engine, wanted.names, in_full=False)))
    if dist.is_main():
        ranks, compiles_blocks = [Facts.read(each) for each in gathered], config.engine.compile == "blocks"
        for line in lines(ranks, wanted, len(config.data.sources), compiles_blocks):
            dist.log(f"doctor    {line}")


def lines(ranks: Sequence[Facts], wanted: Pins, n_sources: int, compiles_blocks: bool = False) -> list[str]:
    """One line, and a second one where something is out of line."""
    places = Counter(each.host for each in ranks)
    shown = [f"{host} x {n}" for host, n in list(places.items())[:4]] + (["…"] if len(places) > 4 else [])
    devices = Counter(each.gpu.name if each.gpu else each.device for each in ranks)
    rows = [*machines.versions(ranks, wanted), *machines.devices(ranks), *machines.limits(ranks, 2 * n_sources)]
    rows += [machines.shared_memory(ranks), machines.environment(ranks)]
    if not ranks[0].no_compiler[0]:  # which rank 0 says itself (runtime/machine.py); the others are silent
        rows.append(machines.compilers(ranks, compiles_blocks))
    versions = ", ".join(f"{name} {ranks[0].versions[name]}" for name in MAIN if name in ranks[0].versions)
    alike = "on all ranks" if all(each.versions == ranks[0].versions for each in ranks) else "on rank 0, NOT ON ALL"
    first = (
        f"{len(places)} host{'s' * (len(places) > 1)} ({', '.join(shown)}), "
        f"{', '.join(f'{n} x {name}' for name, n in devices.items())}; {versions} {alike}"
    )
    out = findings(rows)
    more = f" ({len(out) - 1} more: python -m coca_train doctor, started as this was)" if len(out) > 1 else ""
    return [first, *([f"OUT OF LINE: {out[0]}{more}"] if out else [])]
