# Pulsar standalone: broker and bookie in one process, RocksDB for the metadata.
#
# Clients that come through a fault proxy enter at PORT_BEHIND_PROXY and are told to come back to PORT_PROXY;
# all others enter at PORT_CLIENT and are told to come back there.
cat "$HERE/standalone.conf" - > "$DATA/standalone.conf" <<END
brokerServicePort=$PORT_CLIENT
webServicePort=$PORT_ADMIN
advertisedListeners=direct:pulsar://127.0.0.1:$PORT_CLIENT,proxied:pulsar://127.0.0.1:$PORT_PROXY
internalListenerName=direct
bindAddresses=proxied:pulsar://127.0.0.1:$PORT_BEHIND_PROXY
END
OPENS=
for package in java.base/java.io java.base/java.util.zip java.base/java.nio java.base/jdk.internal.misc \
  java.base/jdk.internal.platform java.base/sun.net java.base/java.lang java.management/sun.management \
  jdk.management/com.sun.management.internal; do
  OPENS="$OPENS --add-opens $package=ALL-UNNAMED"
done
exec java -Xms64m -Xmx256m -XX:MaxDirectMemorySize=256m $JAVA_LEAN $OPENS \
  -Dio.netty.tryReflectionSetAccessible=true -Dlog4j.configurationFile="$HERE/log4j2.properties" -Dlog4j2.is.webapp=false \
  -cp "$(echo "$HERE"/apache-pulsar-*/lib)/*" org.apache.pulsar.PulsarStandaloneStarter --config "$DATA/standalone.conf" \
  --no-functions-worker --no-stream-storage --metadata-dir "$DATA/metadata" --bookkeeper-dir "$DATA/bookkeeper" \
  --num-bookies 1 --bookkeeper-port "$PORT_BOOKIE"
