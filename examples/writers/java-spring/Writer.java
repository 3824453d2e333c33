import com.fasterxml.jackson.core.JsonProcessingException;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.util.Map;
import java.util.NoSuchElementException;
import javax.sql.DataSource;
import org.postgresql.ds.PGSimpleDataSource;
import org.springframework.context.annotation.AnnotationConfigApplicationContext;
import org.springframework.context.annotation.Bean;
import org.springframework.context.annotation.Configuration;
import org.springframework.context.annotation.Import;
import org.springframework.jdbc.core.simple.JdbcClient;
import org.springframework.jdbc.support.JdbcTransactionManager;
import org.springframework.transaction.PlatformTransactionManager;
import org.springframework.transaction.annotation.EnableTransactionManagement;
import org.springframework.transaction.annotation.Propagation;
import org.springframework.transaction.annotation.Transactional;

/**
 * Places and pays orders with Spring, and writes an event for each in the transaction that changes
 * the order.
 *
 * <pre>
 * mvn dependency:copy-dependencies -DoutputDirectory=libs
 * javac -d classes -cp 'libs/*' Writer.java
 * DATABASE_URL='jdbc:postgresql://localhost/shop?user=postgres' java -cp 'classes:libs/*' Writer 20
 * </pre>
 *
 * The database has the outbox of `walpost init` and the table of examples/writers/shop.sql. An
 * order that the database refuses is reported and skipped.
 */
public class Writer {
    public static void main(String[] arguments) {
        if (arguments.length != 1) {
            throw new IllegalArgumentException("usage: Writer COUNT, with DATABASE_URL");
        }
        try (var context = new AnnotationConfigApplicationContext(Settings.class)) {
            write(context.getBean(Orders.class), Long.parseLong(arguments[0]));
        }
    }

    /** Places and pays the orders 1 to `count`. */
    static void write(Orders orders, long count) {
        int placed = 0;
        int paid = 0;
        for (long id = 1; id <= count; id++) {
            try {
                orders.place(id, "customer " + id % 7, id * 100);
                placed++;
            } catch (RuntimeException error) {
                System.err.println("order " + id + " is not placed: " + error.getMessage());
            }
            try {
                orders.pay(id);
                paid++;
            } catch (RuntimeException error) {
                System.err.println("order " + id + " is not paid: " + error.getMessage());
            }
        }
        System.out.println("placed " + placed + ", paid " + paid);
    }

    /** Writes events; in a Spring Boot application a `@Component`. */
    public static class Outbox {
        private static final ObjectMapper JSON = new ObjectMapper();
        private final JdbcClient database;

        public Outbox(JdbcClient database) {
            this.database = database;
        }

        /** MANDATORY: outside a transaction it throws, instead of writing an event by itself. */
        @Transactional(propagation = Propagation.MANDATORY)
        public void publish(String type, String id, String eventType, Map<String, ?> payload) {
            database.sql("""
                INSERT INTO public.outbox
                  (aggregate_type, aggregate_id, event_type, payload, headers)
                VALUES (?, ?, ?, ?::text::jsonb, '{"source": "shop"}')""")
                .params(type, id, eventType, json(payload))
                .update();
        }

        private static String json(Map<String, ?> payload) {
            try {
                return JSON.writeValueAsString(payload);
            } catch (JsonProcessingException error) {
                throw new IllegalArgumentException(error);
            }
        }
    }

    /** The business; in a Spring Boot application a `@Service`. */
    public static class Orders {
        private final JdbcClient database;
        private final Outbox outbox;

        public Orders(JdbcClient database, Outbox outbox) {
            this.database = database;
            this.outbox = outbox;
        }

        /** The order and its event, one statement after the other. */
        @Transactional
        public void place(long id, String customer, long totalCents) {
            database.sql("INSERT INTO public.orders (id, customer, total_cents) VALUES (?, ?, ?)")
                .params(id, customer, totalCents)
                .update();
            outbox.publish("order", String.valueOf(id), "order_placed",
                Map.of("customer", customer, "total_cents", totalCents));
        }

        /** The change and its event in one statement, and so in one round trip. */
        @Transactional
        public void pay(long id) {
            database.sql("""
                WITH paid AS (
                  UPDATE public.orders SET status = 'paid' WHERE id = ? AND status = 'placed'
                  RETURNING id, total_cents
                ), written AS (
                  INSERT INTO public.outbox
                    (aggregate_type, aggregate_id, event_type, payload, headers)
                  SELECT 'order', id::text, 'order_paid',
                         jsonb_build_object('total_cents', total_cents), '{"source": "shop"}'
                  FROM paid
                )
                SELECT id FROM paid""")
                .param(id)
                .query(Long.class)
                .optional()
                .orElseThrow(() -> new NoSuchElementException("there is no such order to pay"));
        }
    }

    /** What Spring Boot configures by itself. */
    @Configuration(proxyBeanMethods = false)
    @EnableTransactionManagement(proxyTargetClass = true)
    @Import({Outbox.class, Orders.class})
    public static class Settings {
        @Bean
        public DataSource dataSource() {
            var source = new PGSimpleDataSource();
            source.setURL(System.getenv("DATABASE_URL"));
            // No other schema can replace PostgreSQL's functions, operators and types.
            source.setOptions("-c search_path=pg_catalog,pg_temp");
            return source;
        }

        @Bean
        public JdbcClient database(DataSource source) {
            return JdbcClient.create(source);
        }

        @Bean
        public PlatformTransactionManager transactions(DataSource source) {
            return new JdbcTransactionManager(source);
        }
    }
}
