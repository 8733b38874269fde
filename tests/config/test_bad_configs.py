"""Every wrong configuration gives its id, names key and place, and says what to do. Exit code 2."""

import os

import pytest

from coca_train.config.messages import is_secret, show
from coca_train.config.sizes import divisors
from coca_train.settings import load
from tests.config.support import has, refused, table

# overrides, code, text that must stand in the line (key or place first)
COMMAND_LINE = """
trian.max_steps=5 | E-CFG-01 | command line trian.max_steps=5 | train.max_steps
optim.learning_rate=1 | E-CFG-01 | command line optim.learning_rate | lr, min_lr
engine.max_steps=5 | E-CFG-01 | train.max_steps
optim.warmup=5 | E-CFG-01 | optim.warmup_steps
eval.multiples=[1,2] | E-CFG-01 | command line eval.multiples=[1,2]: | eval.extrapolation.multiples
optim.betas2=1 | E-CFG-01 | optim.betas2 | optim.betas
zzz=1 | E-CFG-01 | zzz | --help
modle=neox_tiny | E-CFG-01 | modle | model
train.max_steps.x=1 | E-CFG-16 | train.max_steps
optim.betas.0=0.8 | E-CFG-16 | optim.betas=[
optim.lr=abc | E-CFG-04 | command line optim.lr=abc | a number > 0 | optim.lr=0.004
optim.lr=null | E-CFG-04 | optim.lr=null | empty
optim.lr=true | E-CFG-04 | optim.lr=true | true/false
optim.lr=[1,2] | E-CFG-04 | optim.lr | a list
run.root=5 | E-CFG-04 | run.root | text
optim.betas=0.9 | E-CFG-04 | optim.betas | a list of 2 | [0.9, 0.95]
optim.betas=[0.9] | E-CFG-05 | optim.betas | a list of 2
optim.betas=[0.9,0.95,0.99] | E-CFG-05 | optim.betas | a list of 2
optim.betas=[0.9,1.5] | E-CFG-05 | optim.betas | < 1
optim.lr=-1e-4 | E-CFG-05 | optim.lr=-1e-4 | > 0
optim.lr=0 | E-CFG-05 | optim.lr=0 | > 0
model.dropout=1 | E-CFG-05 | model.dropout | >= 0 and < 1
eval.extrapolation.multiples=[] | E-CFG-05 | eval.extrapolation.multiples
position.rope_scaling.theta=0.5 | E-CFG-05 | position.rope_scaling.theta=0.5 | > 1
optim.lr=inf | E-CFG-06 | optim.lr=inf | finite
optim.lr='nan' | E-CFG-06 | optim.lr | finite
train.max_steps=1e400 | E-CFG-06 | train.max_steps=1e400 | finite
model.d_model=1000000000000 | E-CFG-72 | model.d_model=1000000000000 | T parameters x 2 bytes | hold 10 PB
model.vocab_size=1000000000000000 model.d_ff=64 | E-CFG-72 | model.vocab_size | write model.vocab_size=32000
train.seq_len=1000000000000 | E-CFG-72 | train.seq_len | write train.seq_len=4096
train.micro_batch_size=1000000000000 train.global_batch_size=1000000 | E-CFG-72 | train.micro_batch_size
eval.extrapolation.multiples=[1000000000000] | E-CFG-72 | windows of 128,000,000,000,000 tokens
eval.sample_tokens=1000000000000000 | E-CFG-72 | eval.sample_tokens
train.max_steps=100000000 | E-CFG-73 | train.max_steps=100000000 | 100,000,000 steps | counts to 99,999,999
model.n_layers=1000000 | E-CFG-05 | model.n_layers=1000000 | <= 2000
train.global_batch_size=1000000000000001 | E-CFG-05 | <= 1000000
train.max_steps=1e3 | E-CFG-07 | train.max_steps=1e3 | write train.max_steps=1000
engine.activation_checkpointing=2 | E-CFG-31 | engine.activation_checkpointing=2
model.norm=rmsnorm model.bias=[qkv,norm] | E-CFG-87 | model.bias | RMSNorm has no bias | write model.bias=[qkv]
model.norm_weight=one_plus | E-CFG-87 | model.norm_weight=one_plus | model.norm
model.norm_weight=none | E-CFG-87 | model.norm_weight=none | model.bias
model.residual=parallel_one_norm model.norm_placement=post | E-CFG-87 | model.residual | model.norm_placement
model.tie_embeddings=yes | E-CFG-08 | model.tie_embeddings=yes | write model.tie_embeddings=true
engine.timeout_s=1:30:00 | E-CFG-09 | engine.timeout_s=1:30:00 | whole number
run.seed=012 | E-CFG-10 | run.seed=012 | write run.seed=12
train.max_steps=??? | E-CFG-11 | train.max_steps | pass train.max_steps=…
+data.sources.mine.path=x | E-CFG-11 | data.sources.mine.weight | a number > 0
run.root=${a.b} | E-CFG-12 | run.root | ${a.b}
run.root=${data.dir} data.dir=${run.root} | E-CFG-12 | run.root -> data.dir -> run.root
run.root=${data.sources} | E-CFG-12 | run.root
run.root=${oc.env:COCA_TRAIN_NOT_SET} | E-CFG-12 | run.root | COCA_TRAIN_NOT_SET
run.root=${oc.env:HOME} | E-SEC-03 | run.root | not allowed
run.root=${oc.decode:x} | E-SEC-03 | run.root | not allowed
run.root='${${run.name}:x}' | E-SEC-03 | run.root | not allowed
`train.lr =1` | E-CFG-16 | train.lr =1 | write train.lr=1
+train.max_steps=1 | E-CFG-16 | +train.max_steps=1 | write train.max_steps=1
~train.max_steps | E-CFG-16 | write train.max_steps=380
~model | E-CFG-16 | neox_tiny
~data.sources.books | E-CFG-16 | data.sources.books | text, code
train.max_steps | E-CFG-16 | train.max_steps
optim.betas=[0.9,0.95 | E-CFG-16 | optim.betas=[0.9,0.95 | key=value
train.seq_len=64,128 | E-CFG-16 | train.seq_len=64,128 | --multirun
position=coca,rope | E-CFG-16 | position=coca,rope | --multirun
hydra.run.dir=/tmp/x | E-CFG-16 | hydra.run.dir | run.root
position.scheme=ropes | E-CFG-16 | position=<choice> | alibi
position.rope_scaling=yarn | E-CFG-16 | position.rope_scaling | write position/rope_scaling=yarn
model@x=neox_tiny | E-CFG-16 | model@x | model=neox_tiny
model._target_=torch.load | E-SEC-01 | model._target_ | remove it
model.head_dim=5 | E-CFG-20 | head_dim
model=llama_tiny model.n_kv_heads=3 | E-CFG-21 | model.n_kv_heads=3 | model.n_kv_heads=2
checkpoint.save_every_steps=0 | E-CFG-05 | checkpoint.save_every_steps=0
engine.dtype=fp16 engine.device=cpu | E-CFG-27 | engine.dtype=fp16 | engine.dtype=bf16
engine.bucket_size=1e30 | E-CFG-07 | engine.bucket_size=1e30 | <= 10000000000 | for example
engine.bucket_size=99999999999 | E-CFG-05 | engine.bucket_size=99999999999
tracking.wandb_project=0123456789abcdef0123456789abcdef01234567 | E-SEC-02 | tracking.wandb_project=*** | WANDB_API_KEY
tracking.wandb_project=wandb_v1_0123456789abcdefghij | E-SEC-02 | tracking.wandb_project=***
data.dir=https://:hunter2@host/x | E-SEC-02 | data.dir=***
wandb.api_key=0123456789abcdef | E-SEC-02 | wandb.api_key=*** | WANDB_API_KEY
data.dir=https://me:hunter2@host/x | E-SEC-02 | data.dir=***
run.name=../x | E-CFG-29 | run.name=../x | letters, digits
run.name='größe' | E-CFG-29 | run.name | letters, digits
run.root='' | E-CFG-29 | run.root | no path
run.name=größe | E-CFG-16 | run.name=größe | write "run.name='größe'"
data.sources.text.valid_path=${data.sources.text.path} | E-CFG-30 | valid_path
optim.schedule=cos | E-CFG-31 | optim.schedule=cos | optim.schedule=cosine
optim.schedule=wsd optim.warmup_steps=200 optim.cooldown=0.5 | E-CFG-23 | optim.cooldown=0.5 | 190 do not fit
engine.zero_stage=4 | E-CFG-31 | engine.zero_stage=4 | 0, 1, 2, 3
engine.zero_stage=true | E-CFG-31 | engine.zero_stage=true | 0, 1, 2, 3
position.variant=loose | E-CFG-31 | position.variant=loose | slack, strict
model=neox_tny | E-CFG-32 | model=neox_tny | llama_7b | write model=neox_tiny
+experiment=coca_350 | E-CFG-32 | experiment=coca_350 | roformer_350m | experiment=coca_350m
positions/rope_scaling=yarn | E-CFG-32 | positions/rope_scaling | position/rope_scaling
eval.extrapolation.rope_scalings=[plane] | E-CFG-32 | eval.extrapolation.rope_scalings | plain
eval.extrapolation.rope_scalings=[dynamic_ntx@alpha:4] | E-CFG-32 | 'dynamic_ntx'
eval.extrapolation.rope_scalings=[yarn@4] | E-CFG-16 | =[dynamic_ntk@alpha:4]
eval.extrapolation.rope_scalings=[dynamic_ntk@alfa:4] | E-CFG-01 | dynamic_ntk@alfa:4 | alpha
eval.extrapolation.rope_scalings=[dynamic_ntk@name:yarn] | E-CFG-16 | dynamic_ntk@name:yarn
eval.extrapolation.rope_scalings=[dynamic_ntk@alpha:0] | E-CFG-05 | >= 1 | rope_scalings=[dynamic_ntk@alpha:1.0]
eval.extrapolation.attention_patterns=[sinks@window:x] | E-CFG-04 | is text | attention_patterns=[sinks@window:
train=5 | E-CFG-34 | train=5 | train.<option>
data.sources=5 | E-CFG-34 | data.sources=5
~data.sources.text ~data.sources.code | E-CFG-05 | data.sources
engine=deepspeed engine.zero_stage=0 | E-CFG-35 | engine.zero_stage=0 | engine.dtype=bf16 | engine.zero_stage=1
position=transformer_xl data.order=stream data.document_mask=true | E-CFG-43 | data.document_mask=true
  | position.memory_len=128 | data.document_mask=false
data.packing=segments train.seq_len=2 | E-CFG-60 | train.seq_len=2 | write train.seq_len=3
data.upsample_from_tokens=4096 data.upsample_factor=5 | E-CFG-61 | data.packing=windows
  | data.upsample_from_tokens=4096 | data.packing=segments or documents
data.packing=segments data.upsample_from_tokens=4096 | E-CFG-61 | data.upsample_factor=1 | write data.upsample_factor=5
data.packing=segments data.upsample_factor=5 | E-CFG-61 | data.upsample_from_tokens
  | write data.upsample_from_tokens=4096
data.packing=document | E-CFG-31 | data.packing=document
data.upsample_factor=0 | E-CFG-05 | data.upsample_factor=0
~stages.all | E-STG-01 | stages
stages.all.trainable=[] | E-CFG-05 | stages.all.trainable
data.sources.text.weight=0 | E-STG-08 | data.sources.text.weight=0 | ~data.sources.text
`+data.sources.a b={}` | E-CFG-16 | data.sources.a b
attention_pattern=sink | E-CFG-32 | attention_pattern=sink | lambda_mask | write attention_pattern=sinks
attention_pattern.name=sinks | E-CFG-16 | attention_pattern.name | write attention_pattern=sinks | rerope
~attention_pattern | E-CFG-16 | causal
attention_pattern.n_sink=4 | E-CFG-01 | attention_pattern.n_sink=4 | choose attention_pattern=sinks
position=rope attention_pattern=sinks attention_pattern.n_sin=4 | E-CFG-01 | attention_pattern.n_sin=4
  | attention_pattern.n_sink
position=rope attention_pattern=sinks attention_pattern.window=0 | E-CFG-05 | attention_pattern.window=0 | > 0
position=rope attention_pattern=sinks attention_pattern.window=1e2 | E-CFG-07 | write attention_pattern.window=100
position=rope attention_pattern=rerope attention_pattern.window=far | E-CFG-04 | attention_pattern.window=far
position=rope attention_pattern=sinks attention_pattern.n_sink=null | E-CFG-04 | attention_pattern.n_sink=null | empty
position=rope attention_pattern=sinks attention_pattern.n_sink=??? | E-CFG-11 | pass attention_pattern.n_sink=…
position=learned attention_pattern=rerope | E-CFG-44 | attention_pattern.name=rerope | position.scheme=learned
position=learned attention_pattern=lambda_mask | E-CFG-44 | attention_pattern.name=lambda_mask | learned
position=sinusoidal attention_pattern=sinks | E-CFG-44 | attention_pattern.name=sinks
position=nope attention_pattern=rerope | E-CFG-44 | attention_pattern.name=rerope
position=coca attention_pattern=sinks | E-CFG-44 | attention_pattern.name=sinks | position.variant=strict
position=tupe attention_pattern=rerope | E-CFG-44 | attention_pattern.window=128 | write attention_pattern.window=127
attention_pattern=segments | E-CFG-45 | attention_pattern.name=segments
  | configs/attention_pattern/segments.yaml: | evaluation
position=transformer_xl data.order=stream attention_pattern=sinks | E-CFG-45
  | attention_pattern.name=sinks | position.memory_len=128 | write position.memory_len=0
"""


@table(COMMAND_LINE)
def test_command_line(words, code, texts):
    has(refused(words), code, texts)


NINE_TIMES = ",".join(["*{0}"] * 9)
BOMB = "a: &a [x]\n" + "".join(
    f"{name}: &{name} [{NINE_TIMES.format(before)}]\n" for before, name in zip("abcdef", "bcdefg", strict=True)
)
FILES = [
    ("optim:\n  lr: abc\n", "E-CFG-04", ":3 optim.lr=abc"),
    ("optim:\n  lr: .nan\n", "E-CFG-06", ":3 optim.lr"),
    ("train:\n  max_steps: .nan\n", "E-CFG-06", ":3 train.max_steps"),
    ("engine:\n  timeout_s: 1:30:00\n", "E-CFG-09", "YAML reads 1:30:00 as 5400"),
    ("run:\n  seed: 012\n", "E-CFG-10", ":3 run.seed"),
    ("model:\n  bias: yes\n", "E-CFG-08", ":3 model.bias"),
    ("train:\n  max_steps: 1e3\n", "E-CFG-07", "write train.max_steps=1000"),
    ("train:\n  max_step: 3\n", "E-CFG-01", "mine.yaml:3 train.max_step=3"),
    ("train:\n  max_steps: 3\n  max_steps: 4\n", "E-CFG-03", "lines 3 and 4"),
    ("train:\n\tmax_steps: 3\n", "E-CFG-13", "mine.yaml:3:1"),
    ("train: [1\n", "E-CFG-13", "mine.yaml"),
    ("run:\n  root: !!python/object/apply:os.system ['true']\n", "E-CFG-13", "mine.yaml:3"),
    ("run:\n  root: ${oc.env:SECRET}\n", "E-SEC-03", "mine.yaml:3 run.root"),
    ("run:\n  root: ${nothing.here}\n", "E-CFG-12", "mine.yaml:3 run.root"),
    ("model:\n  _target_: torch.load\n", "E-SEC-01", "mine.yaml:3 model._target_"),
    ("tracking:\n  wandb_api_key: hunter2hunter2\n", "E-SEC-02", "mine.yaml:3 tracking.wandb_api_key=***"),
    ("defaults:\n  - override /model: nothing\n", "E-CFG-15", "model/nothing"),
    (BOMB, "E-CFG-14", "10000"),
    ("run:\n  root: " + "x" * 1_100_000 + "\n", "E-CFG-14", "1 MB"),
    ("run:\n  name: &a [*a]\n", "E-CFG-14", "10000"),
    ("run: " + "[" * 900 + "]" * 900, "E-CFG-14", "mine.yaml:2: "),
    ("run: " + "[" * 100_000, "E-CFG-14", "mine.yaml:2: "),
    ("\n".join(" " * level + "a:" for level in range(60)), "E-CFG-14", "mine.yaml:52: "),
    ("train:\n  max_steps: " + "1" * 5000, "E-CFG-14", "mine.yaml:3: "),
    ("train:\n  max_steps: !!int x\n", "E-CFG-13", "mine.yaml:3: "),
    ("train:\n  max_steps: 3\n  ~: 2\n", "E-CFG-13", "mine.yaml:4: "),
    ("42\n", "E-CFG-13", "mine.yaml: holds 42"),
    ("- 1\n", "E-CFG-13", "mine.yaml: holds a list"),
]


def test_a_scheme_that_cannot_be_built_hides_no_error_behind_a_traceback():
    (line,) = refused(["attention_pattern=lambda_mask", "position.rotary_pct=0.1"])
    assert line.startswith("E-CFG-20 ")


def test_a_attention_pattern_file_that_names_nothing(tmp_path):
    (tmp_path / "attention_pattern").mkdir()
    (tmp_path / "attention_pattern" / "mine.yaml").write_text("name: os\n")
    (line,) = refused(["attention_pattern=mine"], (tmp_path,))
    assert line.startswith("E-CFG-31 ")
    assert "attention_pattern.name=os" in line and "causal, " in line and "attention_pattern=<name>" in line


FLAT = (b"train:\n  max_steps: 5\n", "E-CFG-01", "@package _global_")  # without the line that says where it belongs
HEADER = (b"# @package _globaax_steps: 4\ntrain: {max_steps: 5}\n", "E-CFG-15", "_globaax_steps: 4")
BYTES = (b"# @package _global_\nrun: {root: \xff}\n", "E-CFG-15", "not UTF-8")


def write(folder, content):
    (folder / "experiment").mkdir()
    (folder / "experiment" / "mine.yaml").write_bytes(content)
    return (folder,)


CONTENTS = [*((f"# @package _global_\n{text}".encode(), code, part) for text, code, part in FILES), FLAT, HEADER, BYTES]


@pytest.mark.parametrize(("content", "code", "part"), CONTENTS, ids=[f"{c[1]}-{n}" for n, c in enumerate(CONTENTS)])
def test_file(tmp_path, content, code, part):
    has(refused(["+experiment=mine"], write(tmp_path, content)), code, [part])


def test_a_broken_file_that_is_not_used_stops_nothing(tmp_path):
    load([], write(tmp_path, b"# @package _global_\ntrain: [1\n"))


def test_a_pipe_among_the_files_is_not_waited_for(tmp_path):
    (tmp_path / "experiment").mkdir()
    os.mkfifo(tmp_path / "experiment" / "mine.yaml")
    load([], (tmp_path,))
    has(refused(["+experiment=mine"], (tmp_path,)), "E-CFG-15", ["mine.yaml"])


def test_words_that_would_take_minutes_to_read():
    for word in ("data.sources=" + "[" * 20_000, "data.sources=" + "[" * 60 + "]" * 60, "run.name=" + "x" * 30_000):
        has(refused([word]), "E-CFG-16", ["more than"])
    has(refused(["train.max_steps=" + "1" * 5000]), "E-CFG-16", ["train.max_steps"])


def test_a_path_that_no_system_takes():
    (line,) = refused(["run.root=" + "r" * 10_000])
    assert line.startswith("E-CFG-29 ") and "10,000" in line and "3,500" in line and len(line) < 500


def test_divisors_are_found_without_counting_to_a_trillion():
    assert divisors(10**12 + 39, 3) == [1, 10**12 + 39]
    assert divisors(48, 7)[:3] == [6, 8, 4] and divisors(0, 3) == []


def test_all_problems_at_once():
    overrides = ["optim.lr=abc", "trian.x=1", "train.max_steps=1e3", "model=nothing", "train.lr =1", "model.n_heads=5"]
    lines = refused(overrides)
    assert [line[:8] for line in lines] == ["E-CFG-32", "E-CFG-16", "E-CFG-01", "E-CFG-07", "E-CFG-04", "E-CFG-20"]


def test_a_copied_value_is_blamed_once():
    assert len(refused(["position/rope_scaling=yarn", "train.seq_len=1e3"])) == 1


def test_secrets_are_never_repeated():
    overrides = ["wandb.api_key=CANARY12345", "+x={password: CANARY12345}", "data.dir=sk-CANARY12345678901234567890"]
    assert "CANARY" not in "\n".join(refused(overrides))
    assert "CANARY" not in "\n".join(refused(["wandb.api_key =CANARY12345"]))


def test_names_that_only_look_like_secrets_pass():
    load(["eval.max_tokens=1024", "eval.sample_tokens=5", "data.tokenizer=token"])


def test_control_characters_are_escaped():
    assert "\x1b" not in refused(["run.root=a\x1b[31m", "optim.lr='\x1b]0;x'"])[0]


@table("""
RANK=2 WORLD_SIZE=2 | E-RUN-01 | environment: RANK=2 | WORLD_SIZE=2
RANK=x WORLD_SIZE=2 | E-RUN-01 | environment: RANK='x'
WORLD_SIZE=0 | E-RUN-01 | environment: WORLD_SIZE='0'
WORLD_SIZE=3 | E-CFG-19 | 3 devices | write train.global_batch_size=15 or train.global_batch_size=18
WORLD_SIZE=64 | E-CFG-19 | 64 devices | write train.global_batch_size=64
WORLD_SIZE=3 engine.sequence_parallel=2 | E-CFG-81 | engine.sequence_parallel=2
WORLD_SIZE=6 engine.sequence_parallel=2 | E-CFG-19 | 3 groups of 2 devices | train.global_batch_size=15 or
WORLD_SIZE=3 model.n_heads=8 engine.sequence_parallel=3 train.seq_len=126 train.global_batch_size=48 | E-CFG-80
  | model.n_heads=8 | write engine.sequence_parallel=1
WORLD_SIZE=4 model.n_heads=8 engine.sequence_parallel=4 train.seq_len=126 train.global_batch_size=48 | E-CFG-80
  | train.seq_len=126 | write engine.sequence_parallel=2
WORLD_SIZE=2 engine.sequence_parallel=2 position=dape | E-CFG-82 | position.scheme=dape
WORLD_SIZE=2 engine.sequence_parallel=2 position=transformer_xl data.order=stream position.memory_len=8 | E-CFG-82
  | position.memory_len=8 | write position.memory_len=0
WORLD_SIZE=2 engine=local train.micro_batch_size=8 | E-CFG-36 | engine.kind=local
RANK=0 engine.device=cuda | E-RUN-04 | engine.device=cuda
""")
def test_launch(monkeypatch, words, code, texts):
    monkeypatch.setattr("coca_train.config.check._gpus", lambda: 0)
    for pair in [word for word in words if word.startswith(("RANK=", "WORLD_SIZE="))]:
        monkeypatch.setenv(*pair.split("="))
        words = [word for word in words if word != pair]
    (line,) = refused(words)
    has([line], code, texts)


@pytest.mark.parametrize(
    "text",
    [
        "see https://me:CANARY@host/x",
        "key sk-CANARY45678901234567890",
        "hf_CANARY45678901234567890",
        "AKIACANARY4567890123456",
    ],
)
def test_shown_values_hold_no_credentials(text):
    assert "CANARY" not in show(text)
    assert show("num_tokens=5 https://host/x:y") == "num_tokens=5 https://host/x:y"


@pytest.mark.parametrize(
    "name", ["Llama-2-7b-hf-my_texts-6a9c3a35", "/models/vicuna-7b-hf_converted_2026_11_26", "task-00000000000000001"]
)
def test_a_folder_of_weights_is_no_secret(name):
    assert show(name) == name and not is_secret("run.name", name)
