import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.stream.Stream;
import org.apache.flink.api.common.JobStatus;
import org.apache.flink.api.common.functions.OpenContext;
import org.apache.flink.api.common.state.ListState;
import org.apache.flink.api.common.state.ListStateDescriptor;
import org.apache.flink.api.common.state.MapState;
import org.apache.flink.api.common.state.MapStateDescriptor;
import org.apache.flink.api.common.state.ValueState;
import org.apache.flink.api.common.state.ValueStateDescriptor;
import org.apache.flink.api.common.typeinfo.TypeInformation;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.core.execution.JobClient;
import org.apache.flink.core.execution.SavepointFormatType;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.streaming.api.functions.KeyedProcessFunction;
import org.apache.flink.util.Collector;

/** Writes a canonical and a native savepoint, and retains a checkpoint. Arguments: directory, max parallelism, options. */
public class SavepointCase {
    /** The number of values in the state. Both subtasks run in this process. */
    static final AtomicInteger SEEN = new AtomicInteger();

    /** A class that only Kryo can write. */
    public static class Opaque {
        private final long hidden;

        public Opaque(long hidden) {
            this.hidden = hidden;
        }
    }

    static class Counting extends KeyedProcessFunction<String, Long, String> {
        private ValueState<Long> count;
        private ListState<Long> list;
        private MapState<String, Long> map;
        private ValueState<Opaque> opaque;

        @Override
        public void open(OpenContext context) {
            count = getRuntimeContext().getState(new ValueStateDescriptor<>("count", Types.LONG));
            opaque = getRuntimeContext().getState(new ValueStateDescriptor<>("opaque", TypeInformation.of(Opaque.class)));
            list = getRuntimeContext().getListState(new ListStateDescriptor<>("list", Types.LONG));
            map = getRuntimeContext().getMapState(new MapStateDescriptor<>("map", Types.STRING, Types.LONG));
        }

        @Override
        public void processElement(Long value, Context context, Collector<String> out) throws Exception {
            if (value % 50000 >= 500) {
                return;
            }
            count.update(count.value() == null ? 1L : count.value() + 1);
            opaque.update(new Opaque(value));
            list.add(value);
            map.put("m" + value, value);
            context.timerService().registerEventTimeTimer(1_000_000_000L + value);
            SEEN.incrementAndGet();
        }
    }

    public static void main(String[] arguments) throws Exception {
        String directory = "file://" + arguments[0];
        Configuration options = new Configuration();
        options.setString("execution.checkpointing.storage", "filesystem");
        options.setString("execution.checkpointing.dir", directory + "/checkpoints");
        options.setString("execution.checkpointing.externalized-checkpoint-retention", "RETAIN_ON_CANCELLATION");
        options.setString("execution.checkpointing.data-inline-threshold", "1kb");
        options.setString("rest.port", "0");
        for (int index = 2; index < arguments.length; index++) {
            String[] option = arguments[index].split("=", 2);
            options.setString(option[0], option[1]);
        }
        StreamExecutionEnvironment environment = StreamExecutionEnvironment.createLocalEnvironment(2, options);
        environment.setMaxParallelism(Integer.parseInt(arguments[1]));
        environment.enableCheckpointing(2000);
        environment
                .fromSequence(0, 100000)
                .uid("numbers")
                .map(
                        value -> {
                            // The job goes on for longer than the savepoints take.
                            if (value % 50000 >= 500) {
                                Thread.sleep(50);
                            }
                            return value;
                        })
                .returns(Types.LONG)
                .keyBy(value -> "key-" + value % 100, Types.STRING)
                .process(new Counting())
                .uid("counting")
                .print();
        JobClient job = environment.executeAsync();
        while (job.getJobStatus().get() != JobStatus.RUNNING) {
            Thread.sleep(100);
        }
        while (SEEN.get() < 999 || !hasCheckpoint(Path.of(arguments[0], "checkpoints"))) {
            Thread.sleep(100);
        }
        for (SavepointFormatType format : SavepointFormatType.values()) {
            job.triggerSavepoint(directory + "/" + format.name(), format).get(60, TimeUnit.SECONDS);
        }
        job.cancel().get();
        System.exit(0);
    }

    static boolean hasCheckpoint(Path directory) {
        try (Stream<Path> files = Files.exists(directory) ? Files.walk(directory) : Stream.empty()) {
            return files.anyMatch(file -> file.endsWith("_metadata"));
        } catch (IOException | UncheckedIOException error) {
            // The job removes a directory meanwhile.
            return false;
        }
    }
}
