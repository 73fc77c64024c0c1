#!/usr/bin/env bash
# All checks that need an NVIDIA GPU: versions, verification, executed nodes and timing on ort-cuda.
# Needs an environment with torch, onnxruntime-gpu and this package; PYTHON names its interpreter.
# Exit code 0 if every check passes; keep the output.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
PYTHON=${PYTHON:-python3}
OUT=${OUT:-$(mktemp -d)}
failed=0

run() {
  printf '\n$ sdpa-onnx %s\n' "$*"
  "$PYTHON" -m sdpa_onnx "$@" || { printf 'exit code %d\n' "$?"; failed=1; }
}

run runtimes
for dtype in float32 float16; do
  for opset in 18 23; do
    file="$OUT/sdpa_${dtype}_$opset.onnx"
    run export sdpa -o "$file" --dtype "$dtype" --opset "$opset"
    run verify "$file" --runtime ort-cuda
    run inspect "$file" --runtime ort-cuda
  done
  run bench "$OUT/sdpa_${dtype}_18.onnx" "$OUT/sdpa_${dtype}_23.onnx" --runtime ort-cuda --size batch_size=4 \
    --size q_seq_len=1024 --size kv_seq_len=1024 --seconds 5
done
run export sdpa -o "$OUT/causal.onnx" --causal
run verify "$OUT/causal.onnx" --runtime ort-cuda
# Every form of one attention, verified on ort-cuda before it is written, and verified again as a file. ort-gqa needs
# as many keys as queries. A form that stays wrong on ort-cuda is refused with its evidence, which is also a failure here.
run export sdpa -o "$OUT/plain.onnx" --dtype float16 --opset 18 --causal
for form in decomposed attention blocked ort-mha; do
  run convert "$OUT/plain.onnx" -o "$OUT/$form.onnx" --form "$form" --runtime ort-cuda
  run verify "$OUT/$form.onnx" --runtime ort-cuda
done
run export sdpa -o "$OUT/ort-gqa.onnx" --dtype float16 --opset 18 --causal --form ort-gqa --runtime ort-cuda
run verify "$OUT/ort-gqa.onnx" --runtime ort-cuda
# Wrong rows are findings about the runtime, not a failure of this script.
"$PYTHON" -m sdpa_onnx conformance --runtime ort-cuda --page "$OUT/ort-cuda.html" || true
"$PYTHON" -m sdpa_onnx fuzz --runtime ort-cuda --cases 2000 || true
"$PYTHON" -m pytest tests/runtimes -q || failed=1
# Timing in a worker process: captured graphs, events, the clock of the GPU, a cold cache.
"$PYTHON" -m pytest tests/runtimes/worker/test_gpu.py tests/runtimes/worker/test_cuda.py -q -rs -s || failed=1
exit "$failed"
