"""Launch files for a slice: a GKE JobSet, a SkyPilot task, and a script with a gcloud queued-resource request.

Names, labels and software versions come from data/cluster.json, each with its source.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from labkit import hardware, resources
from labkit.errors import LabError, nearest
from labkit.hardware import Slice
from labkit.records import Record, write_atomic

# What each lab runs on a cluster. {axes} is a mesh over all chips, {out} a folder that all hosts see.
LABS = {
    "00_start_here": "labkit doctor",
    "01_mesh_setup": "python -m labkit.mesh --axes {axes}",
    "03_lora_sft": "labkit sft --axes {axes} --out {out}",
}
_NAME = re.compile(r"[a-z]([-a-z0-9]{0,38}[a-z0-9])?")
# 8471 carries libtpu's traffic between hosts, 8080 is the multislice coordinator's, 8476 labkit's and JAX's own.
_PORTS = (8471, 8080, 8476)
_MOUNT = "/bucket"


@dataclass(frozen=True)
class Wish(Record):
    """What is to run where: the choices that all launch files share."""

    slice: Slice
    name: str
    command: str
    image: str
    bucket: str | None
    spot: bool


@dataclass(frozen=True)
class Launch(Record):
    """Files by name, and what a user has to know before starting them."""

    slice: str
    lab: str
    command: str
    files: dict[str, str]
    notes: tuple[str, ...]

    def __str__(self) -> str:
        return " ".join([f"{self.slice}, {self.lab}: {', '.join(self.files)}.", *self.notes])

    def write(self, folder: str | Path) -> None:
        """Write each file into `folder`."""
        for name, text in self.files.items():
            write_atomic(Path(folder) / name, text)


def launch(
    slice_name: str,
    lab: str = "03_lora_sft",
    *,
    command: str | None = None,
    axes: str | None = None,
    name: str | None = None,
    engine: str | None = None,
    image: str = "REGION-docker.pkg.dev/PROJECT/labkit/labkit:latest",
    bucket: str | None = None,
    spot: bool = False,
    out: str | Path | None = None,
) -> Launch:
    """The files that run a lab on a slice, for each engine that can.

    Args:
        slice_name: such as "v5e-16", "v5p-8" or "2xv6e-16".
        lab: a notebook's name; its command-line form is what runs, on every host.
        command: run this instead.
        axes: the mesh, such as "fsdp=8,tp=2"; default: all devices on fsdp.
        name: of the job and of the TPU; default: labkit and the lab's number.
        engine: "gke", "skypilot" or "gcloud" alone.
        image: where your container registry has the image of the Dockerfile that is written too (GKE).
        bucket: a Cloud Storage bucket for checkpoints, which all hosts of a slice must see (GKE).
        spot: ask for capacity that can be taken back.
        out: also write the files here.

    Raises:
        LabError: an unknown slice, lab or engine, a bad name, an engine that does not have the slice.
    """
    wanted = hardware.slice(slice_name)
    if lab not in LABS:
        raise LabError(f"There is no lab {lab!r} that runs on a cluster.", hint=f"Nearest: {nearest(lab, list(LABS))}.")
    name = name or f"labkit-{lab.split('_')[0]}"
    if not _NAME.fullmatch(name):
        raise LabError(f"{name!r} is no name for a job.", hint="Use up to 40 lower-case letters, digits and dashes.")
    text = command or LABS[lab].replace("{axes}", axes or f"fsdp={wanted.devices}")
    wish = Wish(wanted, name, text, image, bucket, spot)
    made = _files(wish, engine)
    found = Launch(wanted.name, lab, _command(wish), made, _notes(wish, made))
    if out is not None:
        found.write(out)
    return found


def _files(wish: Wish, engine: str | None) -> dict[str, str]:
    makers: dict[str, tuple[str, Callable[[Wish], dict[str, str]]]] = {
        "gke": ("gke_accelerator", _gke),
        "skypilot": ("accelerator_type", _skypilot),
        "gcloud": ("accelerator_type", _gcloud),
    }
    if engine is not None and engine not in makers:
        raise LabError(f"There is no engine {engine!r}.", hint=f"Choices: {', '.join(makers)}.")
    files: dict[str, str] = {}
    for label, (needs, make) in makers.items():
        can = bool(_facts(wish.slice)[needs]) and not (label == "skypilot" and wish.slice.slices > 1)
        if engine == label and not can:
            raise LabError(f"{label} does not have {wish.slice.name}.", hint="Leave the engine out to see which do.")
        if can and engine in (None, label):
            files |= make(wish)
    return files


def _command(wish: Wish, *, mounted: bool = False) -> str:
    return wish.command.replace("{out}", f"{_MOUNT}/{wish.name}" if mounted else f"out/{wish.name}")


def _facts(wanted: Slice) -> dict[str, Any]:
    known = resources.load_json("cluster.json")["generations"]
    if wanted.chip.name not in known:
        raise LabError(f"{wanted.chip.title} is no TPU of Google Cloud.", hint=f"Choices: {', '.join(known)}.")
    return known[wanted.chip.name]


def _accelerator_type(wanted: Slice) -> str:
    """Google Cloud's name of one slice: v5e and v6e count chips, the others TensorCores."""
    chips = wanted.chips // wanted.slices
    return _facts(wanted)["accelerator_type"].format(chips=chips, cores=2 * chips)


def _gke(wish: Wish) -> dict[str, str]:
    documents = [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "labkit"}},
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "labkit", "namespace": "labkit"}},
        _jobset(wish),
    ]
    return {"Dockerfile": _DOCKERFILE, "jobset.yaml": "---\n".join(_yaml(document) for document in documents)}


_DOCKERFILE = """\
# Build it in the checkout and push it to where jobset.yaml finds it:
#   docker build -f Dockerfile -t IMAGE . && docker push IMAGE
FROM python:3.12-slim
WORKDIR /labkit
COPY . .
RUN pip install --no-cache-dir ".[tpu]"
"""


def _jobset(wish: Wish) -> dict[str, Any]:
    """One replicated job a slice, one pod a host; the annotation gives each job a node pool, that is a slice, alone."""
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {
            "name": wish.name,
            "namespace": "labkit",
            "annotations": {"alpha.jobset.sigs.k8s.io/exclusive-topology": "cloud.google.com/gke-nodepool"},
        },
        "spec": {
            "failurePolicy": {"maxRestarts": 3},  # a run goes on from its last checkpoint
            "network": {"enableDNSHostnames": True, "publishNotReadyAddresses": True},
            "replicatedJobs": [{"name": "slice", "replicas": wish.slice.slices, "template": {"spec": _job(wish)}}],
        },
    }


def _job(wish: Wish) -> dict[str, Any]:
    hosts = wish.slice.hosts // wish.slice.slices
    metadata = {"annotations": {"gke-gcsfuse/volumes": "true"}} if wish.bucket else {}
    return {
        "completionMode": "Indexed",
        "parallelism": hosts,
        "completions": hosts,
        "backoffLimit": 0,
        "template": {"metadata": metadata, "spec": _pod(wish)},
    }


def _pod(wish: Wish) -> dict[str, Any]:
    chips = wish.slice.chips_per_host
    selector = {
        "cloud.google.com/gke-tpu-accelerator": _facts(wish.slice)["gke_accelerator"],
        "cloud.google.com/gke-tpu-topology": "x".join(map(str, wish.slice.shape)),
    }
    container: dict[str, Any] = {
        "name": "labkit",
        "image": wish.image,
        "command": ["bash", "-c", _command(wish, mounted=bool(wish.bucket))],
        "ports": [{"containerPort": port} for port in _PORTS],
        "resources": {"requests": {"google.com/tpu": chips}, "limits": {"google.com/tpu": chips}},
    }
    pod: dict[str, Any] = {"restartPolicy": "Never", "serviceAccountName": "labkit", "nodeSelector": selector}
    if wish.spot:
        selector["cloud.google.com/gke-spot"] = "true"
    if wish.bucket:
        container["volumeMounts"] = [{"name": "bucket", "mountPath": _MOUNT}]
        attributes = {"bucketName": wish.bucket, "mountOptions": "implicit-dirs"}
        pod["volumes"] = [
            {"name": "bucket", "csi": {"driver": "gcsfuse.csi.storage.gke.io", "volumeAttributes": attributes}}
        ]
    return pod | {"containers": [container]}


def _skypilot(wish: Wish) -> dict[str, str]:
    """SkyPilot runs `run` on every host of a TPU slice; it is one node to it."""
    task = {
        "name": wish.name,
        "workdir": ".",
        "num_nodes": 1,
        "resources": {
            "infra": "gcp",
            "accelerators": f"tpu-{_accelerator_type(wish.slice)}",
            "accelerator_args": {"runtime_version": _facts(wish.slice)["runtime"]},
            "use_spot": wish.spot,
        },
        "setup": "python3 -m pip install '.[tpu]'",
        "run": _command(wish),
    }
    return {"sky.yaml": _yaml(task)}


def _gcloud(wish: Wish) -> dict[str, str]:
    many = wish.slice.slices > 1
    nodes = f"--node-count={wish.slice.slices} --node-prefix={wish.name}" if many else f"--node-id={wish.name}"
    request = [
        f"gcloud compute tpus queued-resources create {wish.name} {nodes}",
        '--project="$PROJECT" --zone="$ZONE"',
        f"--accelerator-type={_accelerator_type(wish.slice)}",
        f"--runtime-version={_facts(wish.slice)['runtime']}",
        *(["--spot"] if wish.spot else []),
    ]
    tpus = [f"{wish.name}-{i}" for i in range(wish.slice.slices)] if many else [wish.name]
    run = shlex.quote('python3 -m pip install "./labkit[tpu]" && ' + _command(wish))
    script = _SCRIPT.format(request=" \\\n  ".join(request), name=wish.name, tpus=" ".join(tpus), run=run)
    return {"queued_resource.sh": script}


_SCRIPT = """\
#!/usr/bin/env bash
# Asks for the slice, waits until it is there, copies this checkout to all its hosts and runs the lab on all of them.
set -euo pipefail
: "${{PROJECT:?export PROJECT, your Google Cloud project}}" "${{ZONE:?export ZONE, which must have this TPU}}"

{request}

state() {{
  gcloud compute tpus queued-resources describe {name} --project="$PROJECT" --zone="$ZONE" --format="value(state.state)"
}}
until [ "$(state)" = ACTIVE ]; do
  case "$(state)" in FAILED | SUSPENDED) echo "The request ended as $(state)." >&2; exit 1 ;; esac
  sleep 30
done

for tpu in {tpus}; do
  gcloud compute tpus tpu-vm scp --recurse . "$tpu":labkit --worker=all --project="$PROJECT" --zone="$ZONE"
done
runs=()
for tpu in {tpus}; do
  gcloud compute tpus tpu-vm ssh "$tpu" --worker=all --project="$PROJECT" --zone="$ZONE" --command={run} &
  runs+=($!)
done
for run in "${{runs[@]}}"; do wait "$run"; done
# gcloud compute tpus queued-resources delete {name} --project="$PROJECT" --zone="$ZONE" --force
"""


def _notes(wish: Wish, files: dict[str, str]) -> tuple[str, ...]:
    notes = []
    if "jobset.yaml" in files:
        notes.append("GKE needs the JobSet controller in the cluster and the image in your registry (--image).")
    if wish.slice.hosts > 1 and "{out}" in wish.command:
        notes.append("All hosts must see the --out folder: a --bucket on GKE, a shared disk elsewhere.")
    if "sky.yaml" not in files and wish.slice.slices > 1:
        notes.append("SkyPilot has no multislice, so there is no task for it.")
    if "queued_resource.sh" not in files and not _facts(wish.slice)["accelerator_type"]:
        notes.append(f"{wish.slice.chip.title} is on GKE only.")
    return tuple(notes)


def _yaml(value: dict[str, Any]) -> str:
    return yaml.safe_dump(value, sort_keys=False, width=110)
