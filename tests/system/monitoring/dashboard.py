"""Reads a dashboard with Grafana's own types, and prints each panel's title and queries as JSON.

What the types do not know they drop: whatever of the file does not come back out of them is an error,
as is a panel whose options or queries have no type of their own.
"""

import json
import sys

from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models.dashboard import Dashboard, RowPanel


def lost(written, read, path=""):
    """The places of what was written and is not read."""
    if isinstance(written, dict):
        for key, value in written.items():
            if isinstance(read, dict) and key in read:
                yield from lost(value, read[key], f"{path}/{key}")
            elif value is not None:
                yield f"{path}/{key}"
    elif isinstance(written, list):
        if not isinstance(read, list) or len(read) != len(written):
            yield path
        else:
            for number, pair in enumerate(zip(written, read)):
                yield from lost(*pair, f"{path}/{number}")
    elif written != read:
        yield path


def untyped(dashboard):
    """The panels of which a part is still a bare dictionary."""
    for panel in dashboard.panels:
        if not isinstance(panel, RowPanel):
            for part in [panel.options, *panel.targets]:
                if isinstance(part, dict):
                    yield panel.title


def main(path):
    register_default_plugins()
    with open(path, encoding="utf-8") as file:
        written = json.load(file)
    dashboard = Dashboard.from_json(written)
    faults = [*lost(written, json.loads(JSONEncoder().encode(dashboard))), *untyped(dashboard)]
    if faults:
        sys.exit(f"Grafana's types do not know: {', '.join(faults)}")
    panels = [panel for panel in dashboard.panels if not isinstance(panel, RowPanel)]
    queries = {panel.title: [target.expr for target in panel.targets] for panel in panels}
    assert len(queries) == len(panels), "two panels have the same title"
    print(json.dumps(queries))


main(sys.argv[1])
