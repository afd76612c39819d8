# Kafka in KRaft mode, one node.
#
# Clients that come through a fault proxy enter at PORT_BEHIND_PROXY and are told to come back to PORT_PROXY;
# all others enter at PORT_CLIENT and are told to come back there.
cat "$HERE/server.properties" - > "$DATA/server.properties" <<END
listeners=CLIENT://127.0.0.1:$PORT_CLIENT,PROXIED://127.0.0.1:$PORT_BEHIND_PROXY,CONTROLLER://127.0.0.1:$PORT_CONTROLLER
advertised.listeners=CLIENT://127.0.0.1:$PORT_CLIENT,PROXIED://127.0.0.1:$PORT_PROXY
controller.quorum.voters=1@127.0.0.1:$PORT_CONTROLLER
log.dirs=$DATA/log
END
export CLASSPATH="$HERE/lib/*"
set -- -Xms64m -Xmx256m $JAVA_LEAN "-Dlog4j2.configurationFile=$HERE/log4j2.properties"
if [ ! -f "$DATA/log/meta.properties" ]; then
  java "$@" kafka.tools.StorageTool format -t AAAAAAAAAAAAAAAAAAAAAQ -c "$DATA/server.properties" || exit 1
fi
exec java "$@" kafka.Kafka "$DATA/server.properties"
