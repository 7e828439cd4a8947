"""The scripts that start runs elsewhere, with programs in the place of the cloud's that only write
down how they are called."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

REPOSITORY = Path(__file__).resolve().parents[2]
SLURM = {"NODES": "2", "GPUS_PER_NODE": "8", "CPUS_PER_NODE": "64", "TIME": "12:00:00"}
POD = {"TPU_NAME": "slice", "ZONE": "us-west4-a", "PROJECT": "mine"}
NEW_POD = {**POD, "ACCELERATOR_TYPE": "v5litepod-16", "RUNTIME_VERSION": "v2-alpha-tpuv5-lite"}
JOB = {"JOB_NAME": "first", "IMAGE": "host/project/image:1", "VOLUME_CLAIM": "runs"}
GPU_JOB = {**JOB, "HOSTS": "2", "GPU_ACCELERATOR": "nvidia-h100-80gb", "GPUS_PER_HOST": "8"}
TPU_JOB = {
    **JOB,
    "TPU_ACCELERATOR": "tpu-v5-lite-podslice",
    "TPU_TOPOLOGY": "4x4",
    "CHIPS_PER_HOST": "4",
}
# Words that shells, manifests and bash's own replacement would change if they could.
HOSTILE = ["--config", "a&b.yaml", "x=two words", "y=$(HOME)`id`", 'z="\\n"', "@IMAGE@ ' *"]


class Machine:
    """A copy of the scripts, and what the programs on its PATH were called with."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.launch = folder / "project" / "launch"
        shutil.copytree(REPOSITORY / "launch", self.launch)
        (folder / "bin").mkdir()
        for program in ("bash", "dirname", "cat", "env", "grep", "sleep"):
            os.symlink(shutil.which(program), folder / "bin" / program)

    def fake(self, name: str, body: str = "") -> None:
        """Puts a program on PATH that records its words and its input, then runs `body`."""
        record = (
            "import json, sys; "
            f"open({str(self.folder / 'calls')!r}, 'a').write(json.dumps(sys.argv[1:]) + '\\n')"
        )
        command = shlex.join([sys.executable, "-c", record, name])
        path = self.folder / "bin" / name
        path.write_text(f'#!{shutil.which("bash")}\n{command} "$@" </dev/null\n{body}\n')
        path.chmod(0o755)

    def calls(self) -> list[list[str]]:
        path = self.folder / "calls"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def run(self, script: str, *words: str, **variables: str) -> subprocess.CompletedProcess:
        return subprocess.run(
            [self.folder / "bin" / "bash", str(self.launch / script), *words],
            env={"PATH": str(self.folder / "bin"), **variables},
            cwd=self.folder,
            capture_output=True,
            text=True,
        )


@pytest.fixture
def machine(tmp_path) -> Machine:
    return Machine(tmp_path)


CASES = [
    ("slurm.sh", [], {**SLURM, "NODES": ""}, "NODES is not set"),
    ("slurm.sh", [], {**SLURM, "NODES": "0"}, "NODES = '0'"),
    ("slurm.sh", [], {**SLURM, "GPUS_PER_NODE": "all"}, "GPUS_PER_NODE = 'all'"),
    ("slurm.sh", [], {**SLURM, "CPUS_PER_NODE": "-1"}, "CPUS_PER_NODE = '-1'"),
    ("slurm.sh", [], {**SLURM, "TIME": "long"}, "TIME = 'long'"),
    ("slurm.sh", [], {**SLURM, "PARTITION": "--wrap=id"}, "PARTITION = '--wrap=id'"),
    ("slurm.sh", ["--process", "1"], SLURM, "--process: the processes of this run find"),
    ("slurm.sh", ["a=b\nc"], SLURM, "has control characters"),
    ("slurm.sh", [], SLURM, "sbatch was not found"),
    ("tpu_pod.sh", [], POD, "'': the first word must be create, run or delete"),
    ("tpu_pod.sh", ["train"], POD, "'train': the first word must be"),
    ("tpu_pod.sh", ["delete", "seed=1"], POD, "'seed=1': delete takes no words"),
    ("tpu_pod.sh", ["run"], {"ZONE": "us-west4-a"}, "TPU_NAME is not set"),
    ("tpu_pod.sh", ["run"], {**POD, "TPU_NAME": "Slice"}, "TPU_NAME = 'Slice'"),
    ("tpu_pod.sh", ["run"], {**POD, "ZONE": "us-west4"}, "ZONE = 'us-west4'"),
    ("tpu_pod.sh", ["create"], POD, "ACCELERATOR_TYPE is not set"),
    ("tpu_pod.sh", ["create"], {**NEW_POD, "ACCELERATOR_TYPE": "v5e"}, "ACCELERATOR_TYPE = 'v5e'"),
    ("tpu_pod.sh", ["create"], {**NEW_POD, "RUNTIME_VERSION": ""}, "RUNTIME_VERSION is not set"),
    ("tpu_pod.sh", ["create"], {**NEW_POD, "SPOT": "yes"}, "SPOT = 'yes'"),
    ("tpu_pod.sh", ["create"], {**NEW_POD, "WAIT_MINUTES": "1.5"}, "WAIT_MINUTES = '1.5'"),
    ("tpu_pod.sh", ["run", "--coordinator=h:1"], POD, "--coordinator=h:1: the processes"),
    ("tpu_pod.sh", ["run"], POD, "gcloud was not found"),
    ("gke.sh", [], GPU_JOB, "'': the first word must be tpu or gpu"),
    ("gke.sh", ["gpu"], {**GPU_JOB, "JOB_NAME": "x" * 41}, "at most 40"),
    ("gke.sh", ["gpu"], {**GPU_JOB, "IMAGE": "a b"}, "IMAGE = 'a b'"),
    ("gke.sh", ["gpu"], {**GPU_JOB, "VOLUME_CLAIM": ""}, "VOLUME_CLAIM is not set"),
    ("gke.sh", ["gpu"], {**GPU_JOB, "HOSTS": "two"}, "HOSTS = 'two'"),
    ("gke.sh", ["gpu"], {**GPU_JOB, "RESTARTS": "x"}, "RESTARTS = 'x'"),
    ("gke.sh", ["gpu"], {**GPU_JOB, "NAMESPACE": "a\nb"}, "NAMESPACE = "),
    ("gke.sh", ["tpu"], {**TPU_JOB, "TPU_TOPOLOGY": "16"}, "TPU_TOPOLOGY = '16'"),
    ("gke.sh", ["tpu"], {**TPU_JOB, "CHIPS_PER_HOST": "3"}, "must divide the 16 chips of 4x4"),
    ("gke.sh", ["tpu"], TPU_JOB, "kubectl was not found"),
    ("gpu_host.sh", [], {"GPUS": "first"}, "GPUS = 'first'"),
    ("gpu_host.sh", [], {}, "nvidia-smi was not found"),
]


@pytest.mark.parametrize(("script", "words", "variables", "message"), CASES)
def test_bad_variables_are_named_before_any_call(machine, script, words, variables, message):
    done = machine.run(script, *words, **variables)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: ") and message in done.stderr
    assert sorted(path.name for path in machine.folder.iterdir()) == ["bin", "project"]


def test_slurm_gets_one_task_a_node(machine):
    done = machine.run("slurm.sh", "--dry-run", *HOSTILE, **SLURM, PARTITION="gpu", ACCOUNT="me")
    assert done.returncode == 0, done.stderr
    *options, wrapped = shlex.split(done.stdout)
    assert options == [
        "sbatch",
        "--job-name=hacpo",
        "--nodes=2",
        "--ntasks-per-node=1",
        "--gpus-per-node=8",
        "--cpus-per-task=64",
        "--time=12:00:00",
        "--partition=gpu",
        "--account=me",
        "--output=hacpo-%j.log",
    ]
    python = str(machine.folder / "project" / ".venv" / "bin" / "python")
    step = ["srun", "--kill-on-bad-exit=1", "--cpus-per-task=64", python, "-m", "hacpo_jax.launch"]
    assert shlex.split(wrapped.removeprefix("--wrap=")) == [*step, *HOSTILE]


def test_a_dry_run_calls_nothing(machine):
    for name in ("sbatch", "gcloud", "kubectl", "nvidia-smi"):
        machine.fake(name)
    for script, words, variables in (
        ("slurm.sh", ["--dry-run"], SLURM),
        ("tpu_pod.sh", ["create", "--dry-run"], NEW_POD),
        ("tpu_pod.sh", ["run", "--dry-run", "a=b"], POD),
        ("tpu_pod.sh", ["delete", "--dry-run"], POD),
        ("gke.sh", ["tpu", "--dry-run"], TPU_JOB),
        ("gpu_host.sh", ["--dry-run"], {}),
    ):
        done = machine.run(script, *words, **variables)
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.strip()
    assert machine.calls() == []
    assert sorted(path.name for path in machine.folder.iterdir()) == ["bin", "project"]


PLACE = ["--zone=us-west4-a", "--project=mine"]
RESOURCES = ["gcloud", "compute", "tpus", "queued-resources"]


def test_a_slice_is_asked_for_and_waited_for(machine):
    # Three answers in turn: queued, being made, there.
    body = f"""
        if [[ "$*" == *describe* ]]; then
            state={machine.folder}/state; echo x >>$state; n=$(grep -c x $state)
            states=(ACCEPTED PROVISIONING ACTIVE); echo "${{states[n - 1]}}"
        fi"""
    machine.fake("gcloud", body)
    (machine.folder / "bin" / "sleep").unlink()
    machine.fake("sleep")
    done = machine.run("tpu_pod.sh", "create", **NEW_POD, SPOT="1")
    assert done.returncode == 0, done.stderr
    describe = [*RESOURCES, "describe", "slice", *PLACE, "--format=value(state.state)"]
    listed, created, *rest = machine.calls()
    assert listed[:5] == [*RESOURCES, "list"]
    kind = ["--accelerator-type=v5litepod-16", "--runtime-version=v2-alpha-tpuv5-lite", "--spot"]
    assert created == [*RESOURCES, "create", "slice", "--node-id=slice", *PLACE, *kind]
    assert rest == [describe, ["sleep", "20"], describe, ["sleep", "20"], describe]


def test_a_slice_that_was_asked_for_is_only_waited_for(machine):
    machine.fake("gcloud", 'case "$*" in *list*) echo slice ;; *describe*) echo ACTIVE ;; esac')
    assert machine.run("tpu_pod.sh", "create", **NEW_POD).returncode == 0
    assert [call[4] for call in machine.calls()] == ["list", "describe"]


@pytest.mark.parametrize("state", ["FAILED", "SUSPENDED"])
def test_a_slice_that_will_not_come_is_an_error(machine, state):
    machine.fake("gcloud", f'[[ "$*" != *describe* ]] || echo {state}')
    done = machine.run("tpu_pod.sh", "create", **NEW_POD)
    assert done.returncode == 2
    assert f"TPU_NAME = 'slice': the request is {state}" in done.stderr


def test_a_run_reaches_all_hosts_of_a_slice(machine):
    machine.fake("gcloud")
    done = machine.run("tpu_pod.sh", "run", *HOSTILE, **POD)
    assert done.returncode == 0, done.stderr
    clean, copy, start = machine.calls()
    assert clean[:6] == [*RESOURCES[:3], "tpu-vm", "ssh", "slice"]
    assert copy[:6] == [*RESOURCES[:3], "tpu-vm", "scp", "--recurse"]
    project = machine.folder / "project"
    assert {f"{project}/hacpo_jax", f"{project}/launch", "slice:hacpo-jax/"} <= set(copy)
    assert all({"--worker=all", *PLACE} <= set(call) for call in (clean, copy, start))
    command = shlex.split(start[-1].removeprefix("--command="))
    assert command == ["HACPO_EXTRA=tpu", "bash", "hacpo-jax/launch/quickstart.sh", *HOSTILE]


def test_a_failing_call_ends_the_script(machine):
    machine.fake("gcloud", "exit 7")
    assert machine.run("tpu_pod.sh", "run", **POD).returncode == 7
    assert len(machine.calls()) == 1


@pytest.mark.parametrize("words", [["create"], ["run", "seed=1"], ["delete"]])
def test_without_a_project_nothing_is_asked_of_a_slice(machine, words):
    machine.fake("gcloud", "echo '(unset)' >&2")
    done = machine.run("tpu_pod.sh", *words, **{**NEW_POD, "PROJECT": ""})
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: PROJECT is not set") and done.stderr.count("\n") == 1
    assert machine.calls() == [["gcloud", "config", "get-value", "project"]]


def test_the_project_of_gcloud_will_do(machine):
    machine.fake("gcloud", "[[ $1 != config ]] || echo theirs")
    done = machine.run("tpu_pod.sh", "delete", **{**POD, "PROJECT": ""})
    assert done.returncode == 0, done.stderr
    _, deleted = machine.calls()
    assert deleted == [*RESOURCES, "delete", "slice", PLACE[0], "--force", "--quiet"]


HELP = [
    ("quickstart.sh", ["--help"]),
    ("gpu_host.sh", ["--help"]),
    ("gpu_host.sh", ["--dry-run", "-h"]),
    ("slurm.sh", ["-h"]),
    ("tpu_pod.sh", ["--help"]),
    ("tpu_pod.sh", ["create", "--help"]),
    ("gke.sh", ["--help"]),
    ("gke.sh", ["gpu", "--help"]),
    ("test.sh", ["--help"]),
]


@pytest.mark.parametrize(("script", "words"), HELP)
def test_help_is_usage_and_needs_no_variable(machine, script, words):
    """Every variable that a script checks is in it, but for those of the other scripts."""
    done = machine.run(script, *words)
    assert (done.returncode, done.stderr) == (0, "")
    assert f"launch/{script}" in done.stdout and "[word ...]" in done.stdout
    assert not any(line.startswith("#") for line in done.stdout.splitlines())
    text = (REPOSITORY / "launch" / script).read_text()
    checked = re.findall(r"^ *(?:need|may) ([A-Z_]+)", text, re.MULTILINE)
    assert [name for name in checked if name not in done.stdout] == []
    assert sorted(path.name for path in machine.folder.iterdir()) == ["bin", "project"]


def test_help_on_a_verb_is_the_programs(machine):
    machine.fake("nvidia-smi", "echo 'GPU 0: H100 (UUID: a)'")
    done = machine.run("gpu_host.sh", "--dry-run", "train", "--help")
    assert shlex.split(done.stdout)[-2:] == ["train", "--help"]


def job_set(text: str) -> tuple[dict, dict]:
    """The replicated job of a manifest, and its container."""
    manifest = yaml.safe_load(text)
    assert (manifest["kind"], manifest["apiVersion"]) == ("JobSet", "jobset.x-k8s.io/v1alpha2")
    assert manifest["metadata"] == {"name": "first", "namespace": "default"}
    (workers,) = manifest["spec"]["replicatedJobs"]
    job = workers["template"]["spec"]
    (container,) = job["template"]["spec"]["containers"]
    assert container["image"] == "host/project/image:1"
    assert container["command"] == ["python", "-m", "hacpo_jax.launch"]
    assert job["completionMode"] == "Indexed"
    return job, container


def test_a_job_set_of_gpu_hosts_says_who_is_who(machine):
    done = machine.run("gke.sh", "gpu", "--dry-run", *HOSTILE, **GPU_JOB)
    assert done.returncode == 0, done.stderr
    assert "@" not in done.stdout.replace("@IMAGE@ ' *", "")
    job, container = job_set(done.stdout)
    assert (job["completions"], job["parallelism"]) == (2, 2)
    # Kubernetes makes $( of $$( and leaves the rest.
    assert [word.replace("$$(", "$(") for word in container["args"]] == HOSTILE
    assert "y=$$(HOME)`id`" in container["args"]
    environment = {item["name"]: item["value"] for item in container["env"]}
    assert environment == {
        "HACPO_COORDINATOR": "first-workers-0-0.first:8482",
        "HACPO_PROCESSES": "2",
    }
    assert container["resources"]["limits"] == {"nvidia.com/gpu": 8}
    selector = job["template"]["spec"]["nodeSelector"]
    assert selector == {"cloud.google.com/gke-accelerator": "nvidia-h100-80gb"}


@pytest.mark.parametrize(
    ("topology", "chips", "hosts"), [("4x4", 4, 4), ("2x4", 8, 1), ("2x2x4", 4, 4)]
)
def test_a_job_set_of_tpu_hosts_has_a_pod_for_each(machine, topology, chips, hosts):
    machine.fake("kubectl", f"cat >{machine.folder}/manifest")
    variables = {**TPU_JOB, "TPU_TOPOLOGY": topology, "CHIPS_PER_HOST": str(chips)}
    done = machine.run("gke.sh", "tpu", "seed=1", **variables)
    assert done.returncode == 0, done.stderr
    assert machine.calls() == [["kubectl", "apply", "--filename=-"]]
    job, container = job_set((machine.folder / "manifest").read_text())
    assert (job["completions"], job["parallelism"], container["args"]) == (hosts, hosts, ["seed=1"])
    assert container["resources"]["limits"] == {"google.com/tpu": chips}
    selector = job["template"]["spec"]["nodeSelector"]
    assert selector["cloud.google.com/gke-tpu-topology"] == topology


def test_one_process_drives_the_gpus_of_a_machine(machine):
    machine.fake("nvidia-smi", "echo 'GPU 0: H100 (UUID: a)'; echo 'GPU 1: H100 (UUID: b)'")
    done = machine.run("gpu_host.sh", "--dry-run", "seed=1", GPUS="0,1")
    script = str(machine.launch / "quickstart.sh")
    environment = ["env", "HACPO_EXTRA=cuda", "CUDA_VISIBLE_DEVICES=0,1"]
    assert shlex.split(done.stdout) == [*environment, "bash", script, "seed=1"]
    done = machine.run("gpu_host.sh", "seed=1", GPUS="0,2")
    assert "GPUS = '0,2': there are 2 GPUs" in done.stderr
    assert done.returncode == 2


def test_a_machine_without_gpus_says_so(machine):
    machine.fake("nvidia-smi")
    done = machine.run("gpu_host.sh")
    assert (done.returncode, done.stderr) == (2, "error: nvidia-smi finds no GPU\n")


def test_scripts_pass_the_linter():
    scripts = sorted(map(str, (REPOSITORY / "launch").glob("*.sh")))
    found = Path(sys.executable).with_name("shellcheck")
    done = subprocess.run([found, "--external-sources", *scripts], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "")


@pytest.mark.parametrize("script", sorted((REPOSITORY / "launch").glob("*.sh")))
def test_each_script_is_listed(script):
    sourced = ("environment.sh", "variables.sh")
    listed = f"| `{script.name}" in (REPOSITORY / "launch" / "README.md").read_text()
    assert listed != (script.name in sourced)
    assert os.access(script, os.X_OK) != (script.name in sourced)
