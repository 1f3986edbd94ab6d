# shellcheck shell=bash
# What the scripts beside this file share: `source` it, it only defines things.
#
# A service (Kafka, Postgres) comes from one of: `given` (its variable is set), `native` (installed programs),
# `docker`, or `none`. choose_SERVICE decides and, where that helps, installs; start_SERVICE and stop_SERVICE act.
# Everything lives under $LOCAL_DIR. A service is ours if the process in our pid file runs on our data folder.

HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
ROOT=$(cd "$HERE/../.." && pwd)
LOCAL_DIR=${TIDEGATE_LOCAL_DIR:-$ROOT/target/local}
mkdir -p "$LOCAL_DIR/logs"
LOCAL_DIR=$(cd "$LOCAL_DIR" && pwd)
ENV_FILE=$LOCAL_DIR/env

# What is left out by default is tested too, in the same build: a second one would take longer than all that it adds.
# shellcheck disable=SC2034
TEST_FEATURES=failpoints,opentelemetry
EX_UNAVAILABLE=69 # sysexits.h: something that is needed is missing

KAFKA_VERSION=${KAFKA_VERSION:-$(sed -n 's/.*<kafka.version>\(.*\)<.*/\1/p' "$HERE/kafka/pom.xml")}
KAFKA_JARS=$LOCAL_DIR/jars/kafka-$KAFKA_VERSION
if [ -n "${KAFKA_HOME:-}" ]; then # as an absolute path, since scripts change the folder; choose_kafka checks it
  KAFKA_HOME=$(cd "$KAFKA_HOME" 2>/dev/null && pwd || echo "$KAFKA_HOME")
  KAFKA_JARS=$KAFKA_HOME/libs
fi
# A schema registry that speaks Confluent's API; 2.6 is the newest that runs on Java 17. For tests and a demo in Avro.
REGISTRY_VERSION=${REGISTRY_VERSION:-2.6.13.Final}
REGISTRY_DIR=$LOCAL_DIR/jars/registry-$REGISTRY_VERSION
KAFKA_DATA=$LOCAL_DIR/kafka
KAFKA_LOG=$LOCAL_DIR/logs/kafka.log
KAFKA_IMAGE=${KAFKA_IMAGE:-apache/kafka:$KAFKA_VERSION}
POSTGRES_IMAGE=${POSTGRES_IMAGE:-postgres:17}
POSTGRES_SETTINGS=(-c max_connections=200 -c shared_buffers=256MB -c max_wal_size=2GB) # fsync stays on: tests kill it

# ---- saying what happens ----

now_ms() {
  local t=${EPOCHREALTIME:-}
  if [ -n "$t" ]; then t=${t/[.,]/}; echo "${t%???}"; else echo "${SECONDS}000"; fi
}

seconds_since() { local ms=$(($(now_ms) - $1)); printf '%d.%d s' $((ms / 1000)) $((ms % 1000 / 100)); }

# step "Doing it"; ...; finish   prints one line: Doing it ... 1.2 s
STEP_SINCE=
step() { STEP_SINCE=$(now_ms); printf '%s ... ' "$1"; }
finish() { printf '%s%s\n' "${1:+$1, }" "$(seconds_since "$STEP_SINCE")"; STEP_SINCE=; }

# fail CODE LINE...: ends the script with the reason, and the cure, on standard error.
fail() {
  [ -z "$STEP_SINCE" ] || echo failed
  local code=$1 && shift
  printf '%s\n' "$@" >&2
  exit "$code"
}

# logged FILE COMMAND...: output goes to the file; only its end is shown, and only if the command fails.
logged() {
  local log=$1 code=0 && shift
  "$@" >"$log" 2>&1 || code=$?
  [ $code = 0 ] || fail 1 "'$1' ended with code $code; the end of $log:" "$(tail -n 20 "$log")"
}

# ---- processes ----

has() { command -v "$1" >/dev/null 2>&1; }
is_root() { [ "$(id -u)" = 0 ]; }

command_line() { # of a process id; empty if there is none, or if it ended and nobody has collected it
  if [ -d /proc/self ]; then
    { tr '\0' ' ' <"/proc/$1/cmdline"; } 2>/dev/null || true
  else
    ps -o args= -p "$1" 2>/dev/null || true
  fi
}

# runs_on PID_FILE WORD: the process still runs, and is the one meant (ids are used again), as WORD is in its command line.
runs_on() {
  local pid=
  { read -r pid <"$1"; } 2>/dev/null || [ -n "$pid" ] || return 1
  case $(command_line "$pid") in *"$2"*) ;; *) return 1 ;; esac
}

# run COMMAND...: in a process group of its own, so that a signal to the script reaches all of it (see stop_on_signals).
CHILD=
run() {
  local code=0
  set -m
  "$@" </dev/null &
  CHILD=$!
  set +m
  wait "$CHILD" || code=$?
  CHILD=
  return $code
}

on_signal() {
  trap '' INT TERM HUP
  if [ -n "$CHILD" ]; then
    kill -TERM -- "-$CHILD" 2>/dev/null || true
    kill -CONT -- "-$CHILD" 2>/dev/null || true # one that is stopped takes no other signal
    wait "$CHILD" || true
    echo # it may have been in the middle of a line
  fi
  exit $((128 + $1))
}
stop_on_signals() { trap 'on_signal 1' HUP && trap 'on_signal 2' INT && trap 'on_signal 15' TERM; }

# free_port FILE: the port used last time if nothing listens there, else a random one. Below 32768, where Linux
# starts to give ports to outgoing connections. Recorded in FILE, which outlives the data: addresses stay the same.
free_port() {
  local port=
  { read -r port <"$1"; } 2>/dev/null || true
  while [ -z "$port" ] || (: <>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; do port=$((20000 + RANDOM % 12000)); done
  echo "$port" >"$1"
  echo "$port"
}

# ---- installing ----

JAVA=${JAVA_HOME:+$JAVA_HOME/bin/}java

has_java() {
  local major
  major=$("$JAVA" -version 2>&1 | sed -n 's/.* version "\([0-9]*\).*/\1/p' | head -n 1)
  [ "${major:-0}" -ge 17 ]
}
has_kafka() { has_java && { [ -d "$KAFKA_JARS" ] || { [ -z "${KAFKA_HOME:-}" ] && has mvn; }; }; }
has_docker() { has docker && docker info >/dev/null 2>&1; }

has_pgbouncer() { has pgbouncer || [ -x /usr/sbin/pgbouncer ]; }
has_postgres() { postgres_bin >/dev/null; }

# The folder of initdb, pg_ctl and postgres: on the PATH, or where packages put them, the newest first.
postgres_bin() {
  local dir
  if has initdb && has pg_ctl && has postgres; then dirname "$(command -v pg_ctl)" && return; fi
  while read -r dir; do
    if [ -x "$dir/initdb" ] && [ -x "$dir/pg_ctl" ]; then echo "$dir" && return; fi
  done < <(printf '%s\n' /usr/lib/postgresql/*/bin /usr/pgsql-*/bin /opt/homebrew/opt/postgresql*/bin | sort -rV)
  return 1
}

# find_missing GROUP...: fills MISSING (in words) and PACKAGES (Debian's names) for build, kafka and postgres.
find_missing() {
  MISSING=() PACKAGES=()
  local group
  for group; do
    case $group in
      build) # librdkafka, zstd and ring are compiled from source
        has cc || missing "a C compiler" gcc libc6-dev
        has c++ || missing "a C++ compiler" g++
        has make || missing make make
        has openssl || missing OpenSSL openssl # for the certificates of tests
        # TLS to Kafka
        { has pkg-config && pkg-config --exists openssl; } || missing "OpenSSL's headers" libssl-dev pkg-config
        ;;
      kafka)
        has_java || missing "Java 17 or newer" "$(java_package)"
        [ -n "${KAFKA_HOME:-}" ] || [ -d "$KAFKA_JARS" ] || has mvn || missing Maven maven
        ;;
      postgres) has_postgres || missing "a Postgres server" postgresql ;;
      pooler) has_pgbouncer || missing PgBouncer pgbouncer ;; # tests put it before Postgres
    esac
  done
}
missing() { MISSING+=("$1") && shift && PACKAGES+=("$@"); }

java_package() { # the first one that this release of Debian or Ubuntu has
  local package
  for package in openjdk-21-jre-headless openjdk-17-jre-headless default-jre-headless; do
    if apt-cache show "$package" 2>/dev/null | grep -q .; then break; fi
  done
  echo "$package"
}

words() { local all && all=$(printf ', %s' "$@") && echo "${all#, }"; }

# install_missing GROUP...: installs what find_missing finds. Says nothing if that is nothing.
# Returns EX_UNAVAILABLE, after saying what to run, where it may not or cannot install.
install_missing() {
  find_missing "$@"
  [ ${#MISSING[@]} -gt 0 ] || return 0
  local sudo=() log=$LOCAL_DIR/logs/install.log
  if has apt-get && [ -z "${TIDEGATE_NO_INSTALL:-}" ]; then
    if is_root; then sudo=(env) # a command that changes nothing
    elif has sudo && { sudo -n true 2>/dev/null || [ -t 0 ]; }; then sudo=(sudo env)
    fi
  fi
  if [ ${#sudo[@]} -gt 0 ]; then
    # A bare system has no package lists yet, and without them Java's package cannot be chosen.
    echo "Missing: $(words "${MISSING[@]}")"
    step "Refreshing the package lists (apt-get update)"
    "${sudo[@]}" apt-get update -q >"$log" 2>&1 || true # some list may fail that is not needed
    finish
    find_missing "$@"
    step "Installing with apt-get install --no-install-recommends ${PACKAGES[*]}"
    if "${sudo[@]}" DEBIAN_FRONTEND=noninteractive \
      apt-get install -y -q --no-install-recommends "${PACKAGES[@]}" >>"$log" 2>&1 </dev/null; then
      finish
      hash -r
      find_missing "$@"
      [ ${#MISSING[@]} -gt 0 ] || return 0
    else
      finish failed
      tail -n 5 "$log" >&2
    fi
  fi
  echo "Missing: $(words "${MISSING[@]}"). To install, run:" >&2
  if has apt-get; then
    is_root || echo "  sudo apt-get update && sudo apt-get install -y --no-install-recommends ${PACKAGES[*]}" >&2
    is_root && echo "  apt-get update && apt-get install -y --no-install-recommends ${PACKAGES[*]}" >&2
  elif has brew; then
    echo "  brew install openjdk maven postgresql@17 pkg-config openssl@3 pgbouncer   # and xcode-select --install for the compilers" >&2
  else
    echo "  (your package manager's packages for the above)" >&2
  fi
  return $EX_UNAVAILABLE
}

# prepare SERVICE...: what building needs, and where it takes no password also what the services need, all in one go.
prepare() {
  local groups=(build) service
  if is_root || { ! has_docker && has sudo && sudo -n true 2>/dev/null; }; then
    for service; do [ -n "$("given_$service")" ] || groups+=("$service"); done
  fi
  install_missing "${groups[@]}" || install_missing build
}

# A fresh rustup is not on the PATH before the next login.
require_cargo() {
  has cargo || PATH=$PATH:${CARGO_HOME:-$HOME/.cargo}/bin
  has cargo || fail $EX_UNAVAILABLE "Rust is missing (cargo). Install it as https://rustup.rs says, or where your system has" \
    "a package for it: apt-get install rustup && rustup default stable. Then run this again."
}

# ---- choosing ----

# choose SERVICE GIVEN: sets HOW for kafka or postgres (see the head of this file); GIVEN is the address, if one is.
choose() {
  if [ -n "$2" ]; then HOW=given
  elif [ -f "$LOCAL_DIR/$1.container" ]; then HOW=docker # as it began, so that its data is found again
  elif "has_$1"; then HOW=native
  elif ! is_root && has_docker; then HOW=docker # no need to touch the system
  elif install_missing "$1" && "has_$1"; then HOW=native
  elif has_docker; then HOW=docker
  else HOW=none
  fi
}

# An address that we wrote ourselves (someone sourced the env file) is not `given`.
given_kafka() { local given=${TIDEGATE__KAFKA__BOOTSTRAP_SERVERS:-} && [ "$given" = "$(kafka_address)" ] || echo "$given"; }
given_pooler() { :; }
given_postgres() { local given=${TIDEGATE__POSTGRES__URL:-} && [ "$given" = "$(postgres_url)" ] || echo "$given"; }

choose_kafka() {
  if [ -n "${KAFKA_HOME:-}" ] && [ ! -d "$KAFKA_JARS" ]; then fail 78 "KAFKA_HOME is no unpacked Kafka: no folder $KAFKA_JARS"; fi
  choose kafka "$(given_kafka)" && KAFKA_HOW=$HOW
}
choose_postgres() { choose postgres "$(given_postgres)" && POSTGRES_HOW=$HOW; }

# ---- Docker, for either service ----

container_running() { [ "$(docker inspect -f '{{.State.Running}}' "$(cat "$LOCAL_DIR/$1.container")" 2>/dev/null)" = true ]; }

# start_container SERVICE RUN_ARGUMENT...: starts the one there is, or makes it. Its data lives in it until --wipe.
start_container() {
  local file=$LOCAL_DIR/$1.container log=$LOCAL_DIR/logs/$1-docker.log && shift
  if [ -f "$file" ]; then
    logged "$log" docker start "$(cat "$file")"
  else
    if [ -f "$file.new" ]; then # from a start that failed
      docker rm -f -v "$(cat "$file.new")" >/dev/null 2>&1 || true
      rm -f "$file.new"
    fi
    logged "$log" docker run -d --cidfile "$file.new" "$@"
    mv "$file.new" "$file"
  fi
}

# ---- Kafka ----

kafka_address() { [ ! -f "$LOCAL_DIR/kafka.port" ] || echo "127.0.0.1:$(cat "$LOCAL_DIR/kafka.port")"; }

kafka_running() {
  if [ -f "$LOCAL_DIR/kafka.container" ]; then container_running kafka; else runs_on "$KAFKA_DATA/pid" "$KAFKA_DATA/server.properties"; fi
}

# kafka_tool CLASS ARGUMENT...: one of Kafka's command line tools, for instance org.apache.kafka.tools.TopicCommand
kafka_tool() {
  "$JAVA" -cp "$KAFKA_JARS/*" -Xmx128m -XX:+UseSerialGC -XX:TieredStopAtLevel=1 \
    "-Dlog4j2.configurationFile=$HERE/kafka/log4j2-tools.yaml" "$@"
}

fetch_kafka() {
  [ ! -d "$KAFKA_JARS" ] || return 0
  step "Fetching Kafka $KAFKA_VERSION with Maven (about 60 MB, only once)"
  rm -rf "$KAFKA_JARS.part"
  logged "$LOCAL_DIR/logs/maven.log" mvn -B -ntp -q -f "$HERE/kafka/pom.xml" "-Dkafka.version=$KAFKA_VERSION" \
    dependency:copy-dependencies -DincludeScope=runtime "-DoutputDirectory=$KAFKA_JARS.part"
  mv "$KAFKA_JARS.part" "$KAFKA_JARS"
  finish
}

# For tests, which start it themselves; left out where nothing can be fetched.
fetch_registry() {
  if [ -d "$REGISTRY_DIR" ] || ! has_java || ! has mvn; then return 0; fi
  step "Fetching Apicurio Registry $REGISTRY_VERSION with Maven (about 140 MB, only once)"
  rm -rf "$REGISTRY_DIR.part" && mkdir -p "$REGISTRY_DIR.part"
  logged "$LOCAL_DIR/logs/maven-registry.log" mvn -B -ntp -q dependency:copy \
    "-Dartifact=io.apicurio:apicurio-registry-app:$REGISTRY_VERSION:tar.gz:all" "-DoutputDirectory=$REGISTRY_DIR.part"
  logged "$LOCAL_DIR/logs/unpack-registry.log" tar -xzf "$REGISTRY_DIR.part/apicurio-registry-app-$REGISTRY_VERSION-all.tar.gz" -C "$REGISTRY_DIR.part"
  rm "$REGISTRY_DIR.part"/*.tar.gz
  mv "$REGISTRY_DIR.part" "$REGISTRY_DIR"
  finish
}

registry_running() { runs_on "$LOCAL_DIR/registry.pid" "$REGISTRY_DIR"; }

# A schema registry in memory; sets TIDEGATE__SCHEMA_REGISTRY__URL.
start_registry() {
  if [ -n "${TIDEGATE__SCHEMA_REGISTRY__URL:-}" ]; then
    echo "Schema registry: using $TIDEGATE__SCHEMA_REGISTRY__URL, as TIDEGATE__SCHEMA_REGISTRY__URL says" && return
  fi
  fetch_registry
  [ -d "$REGISTRY_DIR" ] || fail $EX_UNAVAILABLE "No schema registry: Java 17 and Maven are needed." \
    "Or set TIDEGATE__SCHEMA_REGISTRY__URL to one you have."
  stop_registry
  local port waited=0 log=$LOCAL_DIR/logs/registry.log
  port=$(free_port "$LOCAL_DIR/registry.port")
  step "Starting Apicurio Registry on 127.0.0.1:$port"
  set -m
  nohup "$JAVA" -Xmx256m -XX:+UseSerialGC -XX:TieredStopAtLevel=1 -Dquarkus.http.host=127.0.0.1 "-Dquarkus.http.port=$port" \
    -jar "$REGISTRY_DIR/apicurio-registry-app-$REGISTRY_VERSION-runner.jar" >"$log" 2>&1 </dev/null 9>&- &
  echo $! >"$LOCAL_DIR/registry.pid"
  disown
  set +m
  until (: <>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; do
    sleep 0.1
    waited=$((waited + 1))
    if ! registry_running || [ $waited -gt 900 ]; then
      fail 1 "The schema registry did not start; the end of $log:" "$(tail -n 20 "$log")"
    fi
  done
  export TIDEGATE__SCHEMA_REGISTRY__URL=http://127.0.0.1:$port/apis/ccompat/v7
  finish
}

stop_registry() {
  registry_running || return 0
  step "Stopping the schema registry"
  kill "$(cat "$LOCAL_DIR/registry.pid")"
  while registry_running; do sleep 0.1; done
  finish
}

start_kafka() {
  case $KAFKA_HOW in
    given) echo "Kafka: using $TIDEGATE__KAFKA__BOOTSTRAP_SERVERS, as TIDEGATE__KAFKA__BOOTSTRAP_SERVERS says" && return ;;
    none) fail $EX_UNAVAILABLE "No Kafka: neither Java with Maven nor a running Docker engine is to be had (see above)." \
      "Or set TIDEGATE__KAFKA__BOOTSTRAP_SERVERS to a broker you have." ;;
  esac
  if kafka_running; then echo "Kafka is already up on $(kafka_address)" && return; fi
  if [ "$KAFKA_HOW" = native ]; then start_kafka_native; else start_kafka_docker; fi
}

start_kafka_native() {
  fetch_kafka
  local port controller config=$KAFKA_DATA/server.properties fresh=
  mkdir -p "$KAFKA_DATA"
  port=$(free_port "$LOCAL_DIR/kafka.port")
  controller=$(free_port "$LOCAL_DIR/kafka-controller.port")
  step "Starting Kafka on 127.0.0.1:$port"
  {
    cat "$HERE/kafka/server.properties"
    echo "listeners=PLAINTEXT://127.0.0.1:$port,CONTROLLER://127.0.0.1:$controller"
    echo "advertised.listeners=PLAINTEXT://127.0.0.1:$port"
    echo "controller.quorum.voters=1@127.0.0.1:$controller"
    echo "log.dirs=$KAFKA_DATA/log"
  } >"$config"
  if [ ! -f "$KAFKA_DATA/log/meta.properties" ]; then
    fresh=yes
    rm -rf "$KAFKA_DATA/log" # an interrupted format
    # A cluster id is 16 bytes in URL-safe base64. Its first letter must not look like an option.
    local id && id=T$(head -c 16 /dev/urandom | base64 | tr '+/' '-_' | cut -c 2-22)
    logged "$LOCAL_DIR/logs/kafka-format.log" kafka_tool kafka.tools.StorageTool format -t "$id" -c "$config"
  fi
  # A process group of its own, so that Ctrl-C in this terminal does not reach it. Kafka before 4.0 reads log4j.properties.
  set -m
  nohup "$JAVA" -cp "$KAFKA_JARS/*" -Xms128m "-Xmx${KAFKA_HEAP:-512m}" -XX:+UseSerialGC -Djava.awt.headless=true \
    "-Dlog4j2.configurationFile=$HERE/kafka/log4j2.yaml" \
    ${KAFKA_HOME:+"-Dlog4j.configuration=file:$KAFKA_HOME/config/log4j.properties" "-Dkafka.logs.dir=$KAFKA_DATA/logs"} \
    kafka.Kafka "$config" >"$KAFKA_LOG" 2>&1 </dev/null 9>&- &
  echo $! >"$KAFKA_DATA/pid"
  disown
  set +m
  local waited=0
  until grep -q 'Kafka Server started' "$KAFKA_LOG"; do
    sleep 0.1
    waited=$((waited + 1))
    if ! kafka_running || [ $waited -gt 900 ]; then
      fail 1 "Kafka did not start; the end of $KAFKA_LOG:" "$(tail -n 20 "$KAFKA_LOG")" "To start afresh: deploy/local/down --wipe"
    fi
  done
  # Otherwise the first consumer group waits 3 s until the broker has made this topic.
  [ -z "$fresh" ] || logged "$LOCAL_DIR/logs/kafka-offsets.log" kafka_tool org.apache.kafka.tools.TopicCommand \
    --bootstrap-server "127.0.0.1:$port" --create --if-not-exists --topic __consumer_offsets --partitions 4 \
    --replication-factor 1 --config cleanup.policy=compact --config compression.type=producer --config segment.bytes=104857600
  finish
}

start_kafka_docker() {
  local port key value settings=()
  if [ -f "$LOCAL_DIR/kafka.container" ]; then port=$(cat "$LOCAL_DIR/kafka.port"); else port=$(free_port "$LOCAL_DIR/kafka.port"); fi
  step "Starting Kafka in Docker ($KAFKA_IMAGE) on 127.0.0.1:$port"
  # The image takes a.b.c=x as KAFKA_A_B_C=x.
  while IFS='=' read -r key value; do
    case $key in '' | '#'*) continue ;; esac
    settings+=(-e "KAFKA_$(echo "$key" | tr 'a-z.' 'A-Z_')=$value")
  done <"$HERE/kafka/server.properties"
  start_container kafka -p "127.0.0.1:$port:$port" "${settings[@]}" \
    -e "KAFKA_LISTENERS=PLAINTEXT://0.0.0.0:$port,CONTROLLER://127.0.0.1:9093" \
    -e "KAFKA_ADVERTISED_LISTENERS=PLAINTEXT://127.0.0.1:$port" \
    -e "KAFKA_CONTROLLER_QUORUM_VOTERS=1@127.0.0.1:9093" "$KAFKA_IMAGE"
  local id waited=0 && id=$(cat "$LOCAL_DIR/kafka.container")
  until docker exec "$id" /opt/kafka/bin/kafka-topics.sh --bootstrap-server "127.0.0.1:$port" --list >/dev/null 2>&1; do
    sleep 0.5
    waited=$((waited + 1))
    if ! container_running kafka || [ $waited -gt 120 ]; then fail 1 "Kafka did not start:" "$(docker logs --tail 20 "$id" 2>&1)"; fi
  done
  finish
}

stop_kafka() {
  kafka_running || return 0
  step "Stopping Kafka"
  if [ -f "$LOCAL_DIR/kafka.container" ]; then
    logged "$LOCAL_DIR/logs/kafka-docker.log" docker stop "$(cat "$LOCAL_DIR/kafka.container")"
  else
    local pid waited=0 && pid=$(cat "$KAFKA_DATA/pid")
    kill "$pid"
    while kafka_running; do
      sleep 0.1
      waited=$((waited + 1))
      [ $waited -ne 200 ] || kill -KILL "$pid"
    done
    rm -f "$KAFKA_DATA/pid"
  fi
  finish
}

# ---- Postgres ----

# The server refuses to run as root. As root it becomes $POSTGRES_USER, who owns the data.
POSTGRES_USER=postgres
id -u "$POSTGRES_USER" >/dev/null 2>&1 || POSTGRES_USER=nobody
as_postgres() { if is_root; then (cd / && exec runuser -u "$POSTGRES_USER" -- "$@"); else "$@"; fi; }

postgres_url() { [ ! -f "$LOCAL_DIR/postgres.port" ] || echo "postgres://postgres@127.0.0.1:$(cat "$LOCAL_DIR/postgres.port")/postgres"; }

# Its data folder, which is elsewhere where $POSTGRES_USER cannot reach $LOCAL_DIR.
postgres_data() { cat "$LOCAL_DIR/postgres.dir" 2>/dev/null || echo "$LOCAL_DIR/postgres"; }

postgres_running() {
  if [ -f "$LOCAL_DIR/postgres.container" ]; then container_running postgres; else runs_on "$(postgres_data)/postmaster.pid" "$(postgres_data)"; fi
}

start_postgres() {
  case $POSTGRES_HOW in
    given) # without user, password and options
      local shown=${TIDEGATE__POSTGRES__URL%%\?*}
      echo "Postgres: using ${shown##*@}, as TIDEGATE__POSTGRES__URL says" && return ;;
    none) fail $EX_UNAVAILABLE "No Postgres: neither a Postgres server nor a running Docker engine is to be had (see above)." \
      "Or set TIDEGATE__POSTGRES__URL to a database you have." ;;
  esac
  if postgres_running; then echo "Postgres is already up on $(postgres_url)" && return; fi
  if [ "$POSTGRES_HOW" = native ]; then start_postgres_native; else start_postgres_docker; fi
}

# A folder for the data that the server's user can use.
make_postgres_data() {
  local dir && dir=$(postgres_data)
  mkdir -p "$dir" 2>/dev/null || true
  if is_root; then
    chown "$POSTGRES_USER" "$dir" 2>/dev/null || true
    if ! as_postgres test -w "$dir"; then
      rmdir "$dir" 2>/dev/null || true
      dir=$(mktemp -d "${TMPDIR:-/tmp}/tidegate-postgres.XXXXXX")
      chown "$POSTGRES_USER" "$dir"
      as_postgres test -w "$dir" || fail 1 "User $POSTGRES_USER, who runs Postgres, can use neither $LOCAL_DIR nor $dir." \
        "Set TMPDIR or TIDEGATE_LOCAL_DIR to a folder open to all."
      echo "$dir" >"$LOCAL_DIR/postgres.dir"
      echo "Postgres keeps its data in $dir, as user $POSTGRES_USER cannot reach $LOCAL_DIR"
    fi
  fi
}

start_postgres_native() {
  local bin port dir log
  bin=$(postgres_bin)
  make_postgres_data
  dir=$(postgres_data)
  log=$dir/server.log # within reach of the server's user
  port=$(free_port "$LOCAL_DIR/postgres.port")
  step "Starting Postgres on 127.0.0.1:$port"
  if [ ! -f "$dir/PG_VERSION" ]; then
    # Who can reach 127.0.0.1 may do anything: a private server for development only.
    logged "$LOCAL_DIR/logs/initdb.log" as_postgres "$bin/initdb" -D "$dir" -U postgres -A trust -E UTF8 --no-locale
  fi
  # No socket file: its path may not be longer than 107 bytes.
  logged "$LOCAL_DIR/logs/postgres-start.log" as_postgres "$bin/pg_ctl" -D "$dir" -l "$log" -t 60 -w start \
    -o "-p $port -c listen_addresses=127.0.0.1 -c unix_socket_directories='' ${POSTGRES_SETTINGS[*]}" 9>&-
  finish
}

start_postgres_docker() {
  local port
  if [ -f "$LOCAL_DIR/postgres.container" ]; then port=$(cat "$LOCAL_DIR/postgres.port"); else port=$(free_port "$LOCAL_DIR/postgres.port"); fi
  step "Starting Postgres in Docker ($POSTGRES_IMAGE) on 127.0.0.1:$port"
  start_container postgres -p "127.0.0.1:$port:5432" -e POSTGRES_HOST_AUTH_METHOD=trust "$POSTGRES_IMAGE" "${POSTGRES_SETTINGS[@]}"
  # The image first runs a server on its socket only, to set itself up: ask over TCP.
  local id waited=0 && id=$(cat "$LOCAL_DIR/postgres.container")
  until docker exec "$id" pg_isready -q -h 127.0.0.1; do
    sleep 0.2
    waited=$((waited + 1))
    if ! container_running postgres || [ $waited -gt 300 ]; then fail 1 "Postgres did not start:" "$(docker logs --tail 20 "$id" 2>&1)"; fi
  done
  finish
}

stop_postgres() {
  postgres_running || return 0
  step "Stopping Postgres"
  if [ -f "$LOCAL_DIR/postgres.container" ]; then
    logged "$LOCAL_DIR/logs/postgres-docker.log" docker stop "$(cat "$LOCAL_DIR/postgres.container")"
  else
    logged "$LOCAL_DIR/logs/postgres-stop.log" as_postgres "$(postgres_bin)/pg_ctl" -D "$(postgres_data)" -m fast -t 60 -w stop
  fi
  finish
}

# ---- the stack ----

say_how_to_use() { printf '%s To use it: source %q    To stop it: %q\n' "$1" "$ENV_FILE" "$HERE/down"; }

# start_stack SERVICE...: after choose_SERVICE. One at a time, where the system can lock files.
start_stack() {
  local service
  exec 9>"$LOCAL_DIR/lock"
  ! has flock || flock 9
  for service; do "start_$service"; done
  write_env
  exec 9>&-
}

# Only our own addresses: a given one may hold a password, and is in the environment already.
write_env() {
  {
    echo "# Written by deploy/local/up; to use it: source this file."
    if [ -z "$(given_kafka)" ] && kafka_running; then echo "export TIDEGATE__KAFKA__BOOTSTRAP_SERVERS=$(kafka_address)"; fi
    if [ -z "$(given_postgres)" ] && postgres_running; then echo "export TIDEGATE__POSTGRES__URL=$(postgres_url)"; fi
    programs
  } >"$ENV_FILE.new"
  mv "$ENV_FILE.new" "$ENV_FILE"
}

# For the environment: what tests start servers of their own from, to kill them. Nothing of what is not installed.
programs() {
  if has_java && [ -d "$KAFKA_JARS" ]; then
    printf 'export TIDEGATE_TEST_JAVA=%q TIDEGATE_TEST_KAFKA_JARS=%q\n' "$(command -v "$JAVA")" "$KAFKA_JARS"
  fi
  if has_java && [ -d "$REGISTRY_DIR" ]; then
    printf 'export TIDEGATE_TEST_REGISTRY=%q\n' "$REGISTRY_DIR/apicurio-registry-app-$REGISTRY_VERSION-runner.jar"
  fi
  if has_postgres; then printf 'export TIDEGATE_TEST_POSTGRES_BIN=%q\n' "$(postgres_bin)"; fi
  if has_pgbouncer; then
    printf 'export TIDEGATE_TEST_PGBOUNCER=%q\n' "$(command -v pgbouncer || echo /usr/sbin/pgbouncer)"
  fi
  if is_root; then printf 'export TIDEGATE_TEST_POSTGRES_USER=%q\n' "$POSTGRES_USER"; fi
}

# borrow_stack SERVICE...: for demo and test. Starts what is not up, exports the addresses, and stops at the end of
# the script what it started, unless KEEP is set.
borrow_stack() {
  local service
  STARTED=()
  for service; do
    "choose_$service"
    "${service}_running" || STARTED+=("$service")
  done
  trap return_stack EXIT
  run start_stack "$@"
  # shellcheck disable=SC1090
  source "$ENV_FILE"
}

return_stack() {
  local code=$? service
  trap '' INT TERM HUP
  [ -z "${KEEP:-}" ] || return "$code"
  for service in ${STARTED[@]+"${STARTED[@]}"}; do "stop_$service" || true; done
  if kafka_running || postgres_running; then write_env; else rm -f "$ENV_FILE"; fi
  exit "$code"
}
