import java.io.ByteArrayOutputStream;
import java.io.DataInputStream;
import java.io.EOFException;
import java.io.FileDescriptor;
import java.io.FileOutputStream;
import java.io.IOException;
import java.io.InputStream;
import java.io.OutputStream;
import java.io.PrintStream;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.concurrent.LinkedBlockingQueue;
import jdk.jshell.Diag;
import jdk.jshell.EvalException;
import jdk.jshell.JShell;
import jdk.jshell.JShellException;
import jdk.jshell.Snippet;
import jdk.jshell.SnippetEvent;
import jdk.jshell.SourceCodeAnalysis.Completeness;
import jdk.jshell.SourceCodeAnalysis.CompletionInfo;
import jdk.jshell.UnresolvedReferenceException;
import jdk.jshell.spi.ExecutionControl;
import jdk.jshell.spi.ExecutionControlProvider;
import jdk.jshell.spi.ExecutionEnv;

/**
 * Runs cells in a JShell for java_kernel.py. Frames on standard input and output: one byte that says what it is, four bytes of length
 * (big-endian), and as many bytes of UTF-8. In: x a cell, i interrupt. Out: o and e what the cell prints, r its value, f a failure (name,
 * message and the traceback's lines, separated by NUL), d done.
 *
 * <p>The cells run in this virtual machine. JShell's default, a second one behind sockets, costs 200 ms per snippet. What ends this one
 * (System.exit, a crash) the kernel sees and starts another.
 */
final class JShellHost {
    private static final int FRAME_HEADER = 5; // bytes: the kind and the length
    private static final List<String> IMPORTS = List.of(
            "java.io.*", "java.math.*", "java.net.*", "java.nio.file.*", "java.time.*", "java.util.*", "java.util.concurrent.*",
            "java.util.function.*", "java.util.regex.*", "java.util.stream.*");

    private final FileOutputStream out = new FileOutputStream(FileDescriptor.out);
    private final LinkedBlockingQueue<String> cells = new LinkedBlockingQueue<>();
    private final CellControl control = new CellControl();
    private JShell shell;

    public static void main(String[] arguments) throws IOException {
        InputStream requests = System.in;
        JShellHost host = new JShellHost();
        // From here on these names belong to the cells.
        System.setIn(InputStream.nullInputStream());
        System.setOut(host.new Frames('o'));
        System.setErr(host.new Frames('e'));
        Thread worker = new Thread(host::work, "cells");
        worker.setDaemon(true);
        worker.setUncaughtExceptionHandler((thread, broken) -> {
            broken.printStackTrace();
            Runtime.getRuntime().halt(1);
        });
        worker.start();
        try (DataInputStream in = new DataInputStream(requests)) {
            host.serve(in);
        } catch (EOFException kernelHasEnded) {
            // The kernel has ended: there are no more cells to run.
        }
        Runtime.getRuntime().halt(0);
    }

    private void serve(DataInputStream in) throws IOException {
        while (true) {
            int kind = in.readByte();
            String text = new String(in.readNBytes(in.readInt()), StandardCharsets.UTF_8);
            if (kind == 'x') {
                control.begin();
                cells.add(text);
            } else if (kind == 'i') {
                control.stop();
            }
        }
    }

    private void work() {
        open();
        while (true) {
            try {
                run(cells.take());
            } catch (InterruptedException impossible) {
                return;
            } catch (RuntimeException broken) { // of JShell itself
                fail(broken.getClass().getName(), String.valueOf(broken.getMessage()), List.of(broken.toString()));
            }
            if (control.end()) {
                dropHalfLines();
            }
            send('d', "");
        }
    }

    /** Replaces our streams, whose buffers may hold what a stopped thread had not finished printing: it would become output of the next cell. */
    private void dropHalfLines() {
        if (System.out instanceof Frames) {
            System.setOut(new Frames('o'));
        }
        if (System.err instanceof Frames) {
            System.setErr(new Frames('e'));
        }
    }

    private void open() {
        shell = JShell.builder().executionEngine(new Engine(control), Map.of()).build();
        for (String name : IMPORTS) {
            shell.eval("import " + name + ";");
        }
    }

    /** Evaluates the cell's snippets one after the other, up to the first that fails. The value of the last one is the cell's. */
    private void run(String code) {
        String value = null;
        for (String rest = code; !rest.isBlank(); ) {
            CompletionInfo part = shell.sourceCodeAnalysis().analyzeCompletion(rest);
            if (part.completeness() == Completeness.EMPTY) {
                break;
            }
            boolean whole = part.completeness().isComplete() && part.source() != null;
            value = null;
            for (SnippetEvent event : shell.eval(whole ? part.source() : rest)) {
                if (event.causeSnippet() != null) {
                    continue; // another snippet that this one changes
                }
                if (control.isStopped()) {
                    break;
                }
                if (event.status() == Snippet.Status.REJECTED) {
                    failToCompile(event.snippet());
                    return;
                }
                if (event.exception() != null) {
                    failWith(event.exception());
                    return;
                }
                if (isExpression(event.snippet())) {
                    value = event.value();
                }
            }
            if (control.isStopped()) {
                fail("KeyboardInterrupt", "", List.of("interrupted"));
                return;
            }
            rest = whole ? part.remaining() : "";
        }
        if (value != null && !value.isEmpty()) {
            send('r', value);
        }
    }

    private static boolean isExpression(Snippet snippet) {
        return snippet.kind() == Snippet.Kind.EXPRESSION
                || snippet.subKind() == Snippet.SubKind.TEMP_VAR_EXPRESSION_SUBKIND;
    }

    private void failToCompile(Snippet snippet) {
        StringBuilder trace = new StringBuilder();
        String first = "";
        for (Diag diagnostic : shell.diagnostics(snippet).filter(Diag::isError).toList()) {
            String message = diagnostic.getMessage(Locale.ROOT);
            if (first.isEmpty()) {
                first = message.lines().findFirst().orElse("");
            }
            trace.append("error: ").append(message).append('\n').append(context(snippet.source(), diagnostic));
        }
        fail("CompileError", first, trace.toString().lines().toList());
    }

    /** The line of the source that the diagnostic is about, with a mark below the place. */
    private static String context(String source, Diag diagnostic) {
        int at = (int) Math.min(Math.max(diagnostic.getPosition(), 0), source.length());
        int begin = source.lastIndexOf('\n', at - 1) + 1;
        int end = source.indexOf('\n', at);
        return source.substring(begin, end < 0 ? source.length() : end) + "\n" + " ".repeat(at - begin) + "^\n";
    }

    private void failWith(JShellException exception) {
        ByteArrayOutputStream text = new ByteArrayOutputStream();
        String name = exception.getClass().getName();
        String message = exception.getMessage();
        if (exception instanceof EvalException thrown) {
            name = thrown.getExceptionClassName();
        } else if (exception instanceof UnresolvedReferenceException unresolved) {
            name = "UnresolvedReference";
            message = "uses something that is not declared: "
                    + String.join(", ", shell.unresolvedDependencies(unresolved.getSnippet()).toList());
        }
        PrintStream trace = new PrintStream(text, true, StandardCharsets.UTF_8);
        describe(trace, "", name, message, exception);
        fail(name, message == null ? "" : message, text.toString(StandardCharsets.UTF_8).lines().toList());
    }

    private static void describe(PrintStream trace, String prefix, String name, String message, Throwable exception) {
        trace.println(prefix + name + (message == null ? "" : ": " + message));
        for (StackTraceElement frame : exception.getStackTrace()) {
            trace.println("\tat " + frame);
        }
        if (exception.getCause() instanceof EvalException cause) {
            describe(trace, "Caused by: ", cause.getExceptionClassName(), cause.getMessage(), cause);
        }
    }

    private void fail(String name, String message, List<String> trace) {
        send('f', name + "\0" + message + "\0" + String.join("\0", trace));
    }

    private void send(char kind, String text) {
        byte[] bytes = text.getBytes(StandardCharsets.UTF_8);
        send(kind, bytes, 0, bytes.length);
    }

    /**
     * Sends a frame by one call of native code. What does not obey an interrupt is stopped wherever it is in Java code (Thread.stop), so a
     * frame that is written in parts could be cut, and whatever follows it would be taken for the rest.
     */
    private void send(char kind, byte[] bytes, int offset, int length) {
        byte[] frame = ByteBuffer.allocate(FRAME_HEADER + length).put((byte) kind).putInt(length).put(bytes, offset, length).array();
        try {
            synchronized (out) {
                out.write(frame);
            }
        } catch (IOException kernelHasEnded) {
            Runtime.getRuntime().halt(0);
        }
    }

    /** Has the snippets run by the host's control. */
    private record Engine(CellControl control) implements ExecutionControlProvider {
        @Override
        public String name() {
            return "cells";
        }

        @Override
        public ExecutionControl generate(ExecutionEnv environment, Map<String, String> parameters) {
            return control;
        }
    }

    /** A stream whose every write becomes a frame. */
    private final class Frames extends PrintStream {
        Frames(char kind) {
            super(new OutputStream() {
                @Override
                public void write(int single) {
                    write(new byte[] {(byte) single}, 0, 1);
                }

                @Override
                public void write(byte[] bytes, int offset, int length) {
                    send(kind, bytes, offset, length);
                }
            }, true, StandardCharsets.UTF_8);
        }
    }
}
