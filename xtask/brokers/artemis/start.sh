# ActiveMQ Artemis with an AMQP 1.0 acceptor.
exec java -Xms32m -Xmx256m $JAVA_LEAN -Dorg.slf4j.simpleLogger.defaultLogLevel=warn -Dmax=-1 -Duser=keylane -Dpass=secret -DjournalTimeoutNs=200000 \
  -cp "$HERE/classes:$HERE/lib/*" Artemis "$DATA" "$PORT_CLIENT" "$PORT_JMS"
