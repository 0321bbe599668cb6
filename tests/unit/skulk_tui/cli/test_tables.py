"""Golden frames: what people see. A change is accepted by reading the difference."""

import textwrap

from skulk_tui.cli.output import Listing, Output, OutputFormat, Table
from skulk_tui.cli.records import (
    Names,
    instance_record,
    instance_records,
    key_record,
    model_record,
    names_of,
    node_records,
    plan_record,
    refusal_record,
    status_record,
    transfer_record,
)
from skulk_tui.cli.tables import (
    candidates_tables,
    instance_tables,
    instances_table,
    keys_table,
    model_table,
    models_table,
    nodes_table,
    reasons_table,
    status_tables,
    transfers_table,
)
from protocol.control_api import KeyView
from tests.support.builders import MIB, NOW_MS, a_key_id, a_node_id, a_plan
from tests.support.command_line import Stream
from tests.support.fake_node import (
    a_model,
    a_refusal_of_memory,
    a_state_document,
    a_transfer,
    a_view,
    an_ending,
)

NOW: int = NOW_MS + 65_000
NAMES: Names = {a_node_id(): "box-1"}


def frame(*tables: Table, form: OutputFormat = "table", width: int | None = None) -> str:
    stream = Stream()
    listing = Listing(kind="x", items=(), tables=tables, names=())
    Output(stream, form=form, color=False, width=width).show(listing)
    return stream.getvalue()


def golden(text: str) -> str:
    return textwrap.dedent(text).removeprefix("\n").removesuffix("    ").removesuffix("    ")


def test_status() -> None:
    state = a_state_document(a_view("load"), transfers=(a_transfer(rate_bytes_s=2.0 * MIB),))
    assert frame(*status_tables(status_record(state), now_ms=NOW)) == golden("""
        FIELD        VALUE
        cluster      kcqi5cb6upzbwjvpq
        answered by  box-1
        master       box-1 (term 1, seq 42)

        NODE   HEALTH  ROLE          MEMORY FREE        OF  DISK FREE  BACKENDS
        box-1  warn    full, master     12.0 GiB  16.0 GiB   2.00 GiB  llama_server-cpu

        NODE   LEVEL  CODE      MESSAGE                      REMEDY
        box-1  warn   disk_low  2.0 GiB are free for models  remove a model

        INSTANCE                     MODEL      PHASE      NODE   BACKEND       CONTEXT  BUSY   MEMORY       AGE
        diawk5-wr4tx5czo6wlj3qcnfjb  test/tiny  load 25 %  box-1  scripted-cpu    8,192   -/4  172 MiB  1 m 05 s

        DOWNLOAD   STATE         DONE       OF        RATE  ETA
        test/tiny  download  50.0 MiB  100 MiB  2.00 MiB/s    -
    """)


def test_nodes_wide() -> None:
    assert frame(nodes_table(node_records(a_state_document())), form="wide") == golden("""
        NODE   HEALTH  ROLE          MEMORY FREE        OF  DISK FREE  BACKENDS          ID                  CPU        SEEN
        box-1  warn    full, master     12.0 GiB  16.0 GiB   2.00 GiB  llama_server-cpu  ndiawk5glodu62ngo  25 %  400 ms ago
    """)


def test_instances_on_a_terminal_of_100_columns() -> None:
    state = a_state_document(
        a_view("ready"),
        a_view("load", 2),
        a_view("failed", 3, failure=an_ending(3)),
    )
    assert frame(instances_table(instance_records(state), now_ms=NOW), width=100) == golden("""
        INSTANCE          MODEL      PHASE             NODE   BACKEND       CONTEXT  BUSY   MEMORY       AGE
        diawk5-n5nttai6…  test/tiny  failed (runner.…  box-1  scripted-cpu    8,192   -/4  172 MiB  1 m 05 s
        diawk5-umahlu2r…  test/tiny  load 25 %         box-1  scripted-cpu    8,192   -/4  172 MiB  1 m 05 s
        diawk5-wr4tx5cz…  test/tiny  ready             box-1  scripted-cpu    8,192   1/4  172 MiB  1 m 05 s
    """)


def test_instances_on_a_terminal_of_60_columns() -> None:
    state = a_state_document(a_view("failed", 3, failure=an_ending(3)), a_view("load", 2))
    assert frame(instances_table(instance_records(state), now_ms=NOW), width=60) == golden("""
        INSTANCE       MODEL      PHASE        NODE   BUSY       AGE
        diawk5-n5ntt…  test/tiny  failed (ru…  box-1   -/4  1 m 05 s
        diawk5-umahl…  test/tiny  load 25 %    box-1   -/4  1 m 05 s
    """)


def test_what_is_wrong_is_wrapped_and_never_cut() -> None:
    table = reasons_table(node_records(a_state_document()))
    assert frame(table, width=56) == golden("""
        NODE   LEVEL  CODE      MESSAGE               REMEDY
        box-1  warn   disk_low  2.0 GiB are free for  remove a model
                                models
    """)


def test_a_failed_instance_shows_its_end_and_its_last_words() -> None:
    record = instance_record(a_view("failed", failure=an_ending()), NAMES)
    assert frame(*instance_tables(record, now_ms=NOW)) == golden("""
        FIELD        VALUE
        instance     diawk5-wr4tx5czo6wlj3qcnfjb
        model        test/tiny
        phase        failed (runner.exited)
        attempt      1
        nodes        box-1
        backend      scripted-cpu (single)
        context      8,192 tokens a request
        slots        4
        in flight    -
        queued       -
        memory       172 MiB
        pids         4321
        loaded in    -
        placed       1 m 05 s ago
        plan         aa9cca8330d6e6a64732610c2a1bc649ca7a29e5c66c03bf05cff69b4e65eb1b
        error        runner.exited: the engine ended while it loaded
        failed in    load, attempt 1
        exit status  -
        signal       SIGKILL
        remedy       see its log

        LAST LINES OF ITS LOG
        loading tensors
        killed
    """)


def test_models() -> None:
    records = [
        model_record(a_model(installed=True, placed=True, ready=True, context_window=4096)),
        model_record(a_model("test/other", quantization="", context_length=0, source="hub")),
    ]
    assert frame(models_table(records)) == golden("""
        MODEL          SIZE  QUANT  CONTEXT  STATE      SOURCE
        test/tiny   100 MiB  Q4_1     4,096  ready      package
        test/other  100 MiB  -            -  available  hub
    """)


def test_one_model() -> None:
    assert frame(model_table(model_record(a_model()))) == golden("""
        FIELD          VALUE
        model          test/tiny
        name           tiny
        state          available
        size           100 MiB (104,857,600 B)
        family         llama
        quantization   Q4_1
        context        8,192 tokens
        served window  -
        tasks          TextGeneration
        capabilities   text
        backends       llama_server
        source         package
        licence        Apache-2.0
    """)


def test_candidates_show_the_whole_arithmetic() -> None:
    candidates = [
        plan_record(a_plan(), NAMES),
        refusal_record(a_refusal_of_memory(), NAMES),
    ]
    assert frame(*candidates_tables(candidates)) == golden("""
        PLAN          NODE   BACKEND       SHAPE   CONTEXT  SLOTS  TO DOWNLOAD  NOTE
        aa9cca8330d6  box-1  scripted-cpu  single    8,192      1          0 B

        MEMORY ON  POOL   WEIGHTS  + KV CACHE  + OVERHEAD  = NEEDED  AVAILABLE  - RESERVED   HEADROOM  FITS
        box-1      ram    100 MiB    8.00 MiB    64.0 MiB   172 MiB   12.0 GiB         0 B   11.8 GiB  yes
        box-1      ram   3.00 GiB    8.00 MiB    64.0 MiB  3.07 GiB   1.00 GiB         0 B  -2.07 GiB  no (weights)

        REFUSED  CODE              WHY                    SMALLEST CHANGE
        box-1    placement.no_fit  node-1 lacks 2.06 GiB  free 2.07 GiB on node-1
    """)


def test_transfers() -> None:
    running = a_transfer(rate_bytes_s=2.0 * MIB, eta_s=25.0)
    records = [transfer_record(running), transfer_record(a_transfer("failed", total_bytes=None))]
    assert frame(transfers_table(records)) == golden("""
        DOWNLOAD   STATE         DONE       OF        RATE   ETA
        test/tiny  download  50.0 MiB  100 MiB  2.00 MiB/s  25 s
        test/tiny  failed    50.0 MiB        -           -     -
    """)


def test_keys() -> None:
    key = KeyView(key_id=a_key_id(), name="laptop", scope="operate", created_at_ms=NOW_MS)
    assert frame(keys_table([key_record(key)])) == golden("""
        KEY           NAME    SCOPE    CREATED                   EXPIRES
        key-ej52l4wg  laptop  operate  2023-11-14T22:13:20.000Z  never
    """)


def test_a_node_without_a_name_goes_by_its_id() -> None:
    assert plan_record(a_plan(node=2), names_of(a_state_document())).node_names == (a_node_id(2),)
