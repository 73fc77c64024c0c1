#!/usr/bin/env bash
# Attention in CI: the gate of a pull request, and the history of the main branch. docs/howto/ci.md explains it.
# Copy it next to your workflow as ci/attention.sh; github.yml and gitlab.yml call it and set these variables:
#
#   TARGET    target of the export: mymodel.py:Block, package.module:Class, encoder-self, ...
#   SIZES     sizes to time at, separated by spaces, a table for each: "x_seq_len=128 x_seq_len=1024,batch_size=4"
#   MARGIN    allowed slowdown, percent
#   EXPORT    further options of `sdpa-onnx export`; COMPARE: of `sdpa-onnx compare`
#   KNOWN     file of known findings; used if it exists
#   INSTALL   what pip installs to get sdpa-onnx; empty = it is already installed
#   SETUP     command that installs what TARGET needs, run in each revision; empty = it needs only PyTorch
#   BASE      commit to compare with; empty = none (history)
#   SUITE     suite of the history: ci, or your .toml file; KEEP: number of runs to keep
#   PYTHON    interpreter; OUT: folder of results
set -euo pipefail

TARGET=${TARGET-}
SIZES=${SIZES-}
MARGIN=${MARGIN:-5}
EXPORT=${EXPORT-}
COMPARE=${COMPARE-}
KNOWN=${KNOWN:-ci/attention-known.toml}
INSTALL=${INSTALL-sdpa-onnx}
SETUP=${SETUP-}
BASE=${BASE-}
SUITE=${SUITE:-ci}
KEEP=${KEEP:-100}
PYTHON=${PYTHON:-python3}

HERE=$PWD
# Absolute, because commands also start in other folders.
case $PYTHON in
  /*) ;;
  */*) PYTHON=$HERE/$PYTHON ;;
  *) PYTHON=$(command -v "$PYTHON") ;;
esac
OUT=${OUT:-$HERE/attention}
WORK=$HERE/.attention # worktree and environments; not kept
# Identifies the comment: a checksum of the target, because the target may contain any character.
MARK="<!-- sdpa-onnx: attention $(printf %s "$TARGET" | cksum | cut -d ' ' -f 1) -->"
# A GitHub comment is limited to 65536 characters.
MOST_CHARACTERS=60000

# The folder of a revision, and its interpreter.
folder_of() { if [ "$1" = base ]; then echo "$WORK/base"; else echo "$HERE"; fi; }
python_of() {
  # Both revisions share one environment if neither needs other packages.
  local side=$1
  if [ -z "$SETUP" ]; then side=head; fi
  if [ -z "$INSTALL" ]; then echo "$PYTHON"; else echo "$WORK/env-$side/bin/python"; fi
}

prepare() {
  # Remove what an earlier job left on a self-hosted runner.
  rm -rf "$WORK"
  git worktree prune
  mkdir -p "$OUT" "$WORK"
  if [ -n "$BASE" ]; then git worktree add --force --detach "$WORK/base" "$BASE"; fi
  environment head
  if [ -n "$BASE" ] && [ -n "$SETUP" ]; then environment base; fi
}

environment() {
  local side=$1 path=$PATH
  if [ -n "$INSTALL" ]; then
    "$PYTHON" -m venv "$WORK/env-$side"
    # shellcheck disable=SC2086 # INSTALL is words: options and a name
    "$WORK/env-$side/bin/python" -m pip install --quiet $INSTALL
    path=$WORK/env-$side/bin:$PATH
  fi
  if [ -n "$SETUP" ]; then (cd "$(folder_of "$side")" && PATH=$path bash -euo pipefail -c "$SETUP"); fi
}

# The gate of a pull request: exit code 0 = nothing is proven worse, 1 = something is, 2 = the comparison failed.
gate() {
  mkdir -p "$OUT"
  rm -f "$OUT/gate.md" "$OUT/gate.xml"
  local code=0
  { compared 2>&1 >&3 3>&- | tee "$OUT/messages.txt" >&2; } 3>&1 || code=$?
  if [ ! -s "$OUT/gate.md" ]; then
    { printf '### Attention: not compared\n\n'; tail -n 20 "$OUT/messages.txt" | quoted; } >"$OUT/gate.md"
  fi
  printf '\nExported from `%s`.\n' "$TARGET" >>"$OUT/gate.md"
  return "$code"
}

compared() {
  local words=() size
  exported head || return
  if ! exported base; then
    # A new module, or one that the base could not export: HEAD is judged by itself.
    printf '### Attention: nothing to compare with\n\nThe base commit cannot be exported. HEAD by itself:\n\n' >"$OUT/gate.md"
    local code=0
    (cd "$OUT" && "$(python_of head)" -m sdpa_onnx verify head.onnx) | quoted >>"$OUT/gate.md" || code=$?
    return "$code"
  fi
  for size in $SIZES; do words+=(--at "$size"); done
  if [ -f "$HERE/$KNOWN" ]; then words+=(--expect "$HERE/$KNOWN"); fi
  # If the revisions have different versions of the runtime, each model runs on its own version.
  if [ "$(runtime_of base)" != "$(runtime_of head)" ]; then
    words+=(--base-python "$(python_of base)" --head-python "$(python_of head)")
  fi
  # Run in the folder itself, so that the report has file names and no paths.
  # shellcheck disable=SC2086 # COMPARE is words
  (cd "$OUT" && "$(python_of head)" -m sdpa_onnx compare base.onnx head.onnx --margin "$MARGIN" \
    --markdown gate.md --junit gate.xml ${words[@]+"${words[@]}"} $COMPARE)
}

# Text as an indented block of Markdown, which no content can end.
quoted() { tr '\r' '\n' | sed 's/^/    /'; }

exported() {
  local side=$1
  # shellcheck disable=SC2086 # EXPORT is words
  (cd "$(folder_of "$side")" && "$(python_of "$side")" -m sdpa_onnx export "$TARGET" -o "$OUT/$side.onnx" $EXPORT)
}

runtime_of() { "$(python_of "$1")" -c 'from importlib.metadata import version; print(version("onnxruntime"))' 2>/dev/null || true; }

# Add a run of the suite to $OUT/history and render the history. Known findings do not fail it.
history() {
  local name code=0 words=()
  name=$(date -u +%Y%m%dT%H%M%SZ)-$(git rev-parse --short HEAD)
  mkdir -p "$OUT/history"
  if [ -f "$KNOWN" ]; then words+=(--expect "$KNOWN"); fi
  "$(python_of head)" -m sdpa_onnx run "$SUITE" --out "$OUT/history/$name" ${words[@]+"${words[@]}"} || code=$?
  # Names sort by time. Samples and models are not needed for the history.
  rm -rf "$OUT/history/$name/samples" "$OUT/history/$name/models"
  find "$OUT/history" -mindepth 1 -maxdepth 1 -type d -name '2*' | sort -r | tail -n +$((KEEP + 1)) | xargs -r rm -rf
  "$(python_of head)" -m sdpa_onnx report "$OUT/history"
  return "$code"
}

# The comment on a pull request, updated in place. Needs `gh`, GH_TOKEN, GITHUB_REPOSITORY and PULL_REQUEST.
comment_github() {
  local id
  comment_text
  id=$(gh api --paginate "repos/$GITHUB_REPOSITORY/issues/$PULL_REQUEST/comments" \
    --jq ".[] | select(.user.type == \"Bot\" and (.body | startswith(\"$MARK\"))) | .id" | sed -n 1p)
  if [ -n "$id" ]; then
    gh api --silent --method PATCH "repos/$GITHUB_REPOSITORY/issues/comments/$id" -F "body=@$OUT/comment.md"
  else
    gh api --silent --method POST "repos/$GITHUB_REPOSITORY/issues/$PULL_REQUEST/comments" -F "body=@$OUT/comment.md"
  fi
}

# The comment on a GitLab merge request. Needs `curl` and GITLAB_NOTE_TOKEN with the scope `api`.
comment_gitlab() {
  local notes=$CI_API_V4_URL/projects/$CI_PROJECT_ID/merge_requests/$CI_MERGE_REQUEST_IID/notes id method=POST
  comment_text
  id=$(curl --fail --silent --show-error --header "PRIVATE-TOKEN: $GITLAB_NOTE_TOKEN" "$notes?per_page=100" |
    MARK=$MARK "$PYTHON" -c 'import json, os, sys
print(next((note["id"] for note in json.load(sys.stdin) if note["body"].startswith(os.environ["MARK"])), ""))')
  if [ -n "$id" ]; then method=PUT notes=$notes/$id; fi
  curl --fail --silent --show-error --output /dev/null --request "$method" \
    --header "PRIVATE-TOKEN: $GITLAB_NOTE_TOKEN" --data-urlencode "body@$OUT/comment.md" "$notes"
}

comment_text() {
  { echo "$MARK"; head -c "$MOST_CHARACTERS" "$OUT/gate.md"; echo; } >"$OUT/comment.md"
}

# The runs that the newest pipeline of this branch kept; it is no error if there are none. Needs `gh` and GH_TOKEN.
fetch_github() {
  local run
  mkdir -p "$OUT/history"
  # Only artifacts of a branch of this repository: a pull request from a fork can upload any artifact.
  run=$(gh api "repos/$GITHUB_REPOSITORY/actions/artifacts?name=attention-history&per_page=100" --jq \
    "[.artifacts[] | select((.expired | not) and .workflow_run.head_branch == \"$GITHUB_REF_NAME\" and .workflow_run.head_repository_id == .workflow_run.repository_id)][0].workflow_run.id // empty")
  if [ -z "$run" ]; then echo "No earlier history."; return; fi
  gh run download "$run" --repo "$GITHUB_REPOSITORY" --name attention-history --dir "$OUT/history"
}

fetch_gitlab() {
  mkdir -p "$OUT/history"
  if curl --fail --silent --show-error --location --header "JOB-TOKEN: $CI_JOB_TOKEN" --output "$WORK/history.zip" \
    "$CI_API_V4_URL/projects/$CI_PROJECT_ID/jobs/artifacts/$CI_COMMIT_REF_NAME/download?job=attention-history"; then
    "$PYTHON" -m zipfile -e "$WORK/history.zip" "$HERE"
  else
    echo "No earlier history."
  fi
}

case ${1-} in
  prepare | gate | history) "$1" ;;
  comment-github) comment_github ;;
  comment-gitlab) comment_gitlab ;;
  fetch-github) fetch_github ;;
  fetch-gitlab) fetch_gitlab ;;
  *)
    echo "usage: attention.sh prepare|gate|history|comment-github|comment-gitlab|fetch-github|fetch-gitlab" >&2
    exit 2
    ;;
esac
