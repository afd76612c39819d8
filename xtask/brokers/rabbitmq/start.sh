# RabbitMQ as the system's package has it, with all of its files in $DATA.
#
# Its epmd is its own too: the machine's would be shared between runs, and would stay behind.
mkdir -p "$DATA/mnesia" "$DATA/log"
cat > "$DATA/rabbitmq.conf" <<END
listeners.tcp.1 = 127.0.0.1:$PORT_CLIENT
collect_statistics_interval = 200
management.tcp.ip = 127.0.0.1
management.tcp.port = $PORT_ADMIN
END
echo '[rabbitmq_management,rabbitmq_consistent_hash_exchange].' > "$DATA/enabled_plugins"
: > "$DATA/rabbitmq-env.conf"
# Left out, it would wait for its input to end; given by us, the wrapper replaces itself by the server.
export RABBITMQ_ALLOW_INPUT=1
export RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS='-noinput -kernel inet_dist_use_interface {127,0,0,1} +sbwt none +sbwtdcpu none +sbwtdio none'
export HOME="$DATA" ERL_EPMD_ADDRESS=127.0.0.1 ERL_EPMD_PORT="$PORT_EPMD"
export RABBITMQ_NODENAME=keylane@localhost RABBITMQ_DIST_PORT="$PORT_DIST"
export RABBITMQ_MNESIA_BASE="$DATA/mnesia" RABBITMQ_LOG_BASE="$DATA/log"
export RABBITMQ_CONF_ENV_FILE="$DATA/rabbitmq-env.conf" RABBITMQ_CONFIG_FILE="$DATA/rabbitmq.conf"
export RABBITMQ_ENABLED_PLUGINS_FILE="$DATA/enabled_plugins"
exec /usr/lib/rabbitmq/bin/rabbitmq-server
