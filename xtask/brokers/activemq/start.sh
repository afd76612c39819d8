# ActiveMQ Classic with an AMQP 1.0 connector.
exec java -Xms32m -Xmx256m $JAVA_LEAN -Dorg.slf4j.simpleLogger.defaultLogLevel=warn -Duser=keylane -Dpass=secret \
  -cp "$HERE/classes:$HERE/lib/*" Classic "$DATA" "$PORT_CLIENT" "$PORT_JMS"
