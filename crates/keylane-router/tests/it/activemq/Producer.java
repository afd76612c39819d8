import jakarta.jms.*;

/** Publishes as programs do that use a broker's own JMS client: factory, URL, queue. */
public class Producer {
  public static void main(String[] a) throws Exception {
    var factory = (ConnectionFactory) Class.forName(a[0]).getConstructor(String.class).newInstance(a[1]);
    try (Connection c = factory.createConnection("keylane", "secret"); Session s = c.createSession(false, Session.AUTO_ACKNOWLEDGE)) {
      MessageProducer p = s.createProducer(s.createQueue(a[2]));
      for (int n = 0; n < 10; n++) {
        for (int k = 0; k < 3; k++) {
          String text = "{\"id\":\"k" + k + "#" + n + "\"}";
          Message m = s.createTextMessage(text);
          if (n % 2 == 1) {
            BytesMessage bytes = s.createBytesMessage();
            bytes.writeBytes(text.getBytes("UTF-8"));
            m = bytes;
          }
          m.setStringProperty("JMSXGroupID", "k" + k);
          m.setStringProperty("traceparent", "00-" + n);
          p.send(m);
        }
      }
      MapMessage map = s.createMapMessage();
      map.setString("text", "ü");
      map.setInt("number", 7);
      p.send(map);
      StreamMessage stream = s.createStreamMessage();
      stream.writeString("a");
      stream.writeLong(2);
      p.send(stream);
      p.send(s.createMessage());
    }
  }
}
