import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.Arrays;
import java.util.HexFormat;
import java.util.stream.Collectors;
import org.apache.kafka.clients.producer.internals.BuiltInPartitioner;

/**
 * Prints where the Java producer puts keys: for each line of standard input, a key in
 * hexadecimal digits, its partition in topics of as many partitions as the arguments say.
 */
class Partitions {
    public static void main(String[] counts) throws Exception {
        var keys = new BufferedReader(new InputStreamReader(System.in)).lines().toList();
        var answer = new StringBuilder();
        for (String line : keys) {
            byte[] key = HexFormat.of().parseHex(line);
            answer.append(Arrays.stream(counts)
                .mapToInt(Integer::parseInt)
                .mapToObj(count -> BuiltInPartitioner.partitionForKey(key, count))
                .map(String::valueOf)
                .collect(Collectors.joining(" "))).append('\n');
        }
        System.out.print(answer);
    }
}
