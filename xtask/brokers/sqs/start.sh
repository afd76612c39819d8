# ministack, an emulator of SQS. A kill -9 loses everything; a stop saves the queues for the next start.
export HOME="$DATA" BIND_HOST=127.0.0.1 GATEWAY_PORT="$PORT_CLIENT" SERVICES=sqs PERSIST_STATE=1 STATE_DIR="$DATA/state"
exec "$HERE/venv/bin/python3" -c 'from ministack.app import main; main()'
