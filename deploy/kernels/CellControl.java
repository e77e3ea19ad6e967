import java.lang.reflect.Method;
import java.util.Arrays;
import java.util.HashSet;
import java.util.Set;
import jdk.jshell.execution.DirectExecutionControl;
import org.objectweb.asm.ClassReader;
import org.objectweb.asm.ClassVisitor;
import org.objectweb.asm.ClassWriter;
import org.objectweb.asm.Label;
import org.objectweb.asm.MethodTooLargeException;
import org.objectweb.asm.MethodVisitor;
import org.objectweb.asm.Opcodes;

/**
 * Runs the snippets of cells in this virtual machine, for JShell, and stops them.
 *
 * <p>Thread.stop would end a thread at any instruction, also inside the class library: a lock stays held, a class stays half initialised, and
 * a second stop cuts the handling of the first. So the code of snippets asks at the entry of every method and before every jump back whether
 * it is to stop, and Thread.interrupt wakes what waits. Thread.stop is only for what asks nothing for FORCE_AFTER_MILLIS, such as an endless
 * call of the class library; what even that does not stop ends the virtual machine.
 */
public final class CellControl extends DirectExecutionControl {
    private static final long STOP_EVERY_MILLIS = 100;
    private static final long FORCE_AFTER_MILLIS = 1000;
    private static final long KILL_AFTER_MILLIS = 2000; // less than execd waits before it ends the kernel
    private static final int EXIT_UNSTOPPABLE = 137;

    private static volatile boolean anyStopped; // spares most calls of stopPoint, which every loop makes, the look at their thread

    private final Object lock = new Object(); // held to change what is below
    private boolean active; // a cell runs, in the compiler or in its own code
    private boolean stopped; // the cell that runs, or ran last, is to stop
    private SnippetThread snippet; // whose code runs, null for none
    private final Set<SnippetThreads> stopping = new HashSet<>(); // those that stopPoint has to stop

    /** Says that a cell begins, which stop is about from now on. */
    void begin() {
        synchronized (lock) {
            active = true;
            stopped = false;
        }
    }

    /** Says that the cell has ended; reports whether it was stopped. */
    boolean end() {
        synchronized (lock) {
            active = false;
            return stopped;
        }
    }

    boolean isStopped() {
        synchronized (lock) {
            return stopped;
        }
    }

    /** Stops the running cell, with the threads that its running snippet started. The compiler is let finish; no other snippet begins. */
    @Override
    public void stop() {
        synchronized (lock) {
            if (!active || stopped) {
                return;
            }
            stopped = true;
            if (snippet != null) {
                SnippetThread running = snippet;
                running.threads.stopped = true;
                stopping.add(running.threads);
                anyStopped = true;
                Thread stopper = new Thread(() -> stopThreads(running), "stopper");
                stopper.setDaemon(true);
                stopper.start();
            }
        }
    }

    /** Stops the threads of a snippet: those alone, because the next cell may run before this returns. */
    @SuppressWarnings("removal")
    private static void stopThreads(SnippetThread snippet) {
        long began = System.nanoTime();
        while (snippet.isAlive()) {
            long millis = (System.nanoTime() - began) / 1_000_000;
            if (millis > KILL_AFTER_MILLIS) {
                Runtime.getRuntime().halt(EXIT_UNSTOPPABLE);
            } else if (millis > FORCE_AFTER_MILLIS) {
                snippet.threads.stop();
            } else {
                snippet.threads.interrupt();
            }
            try {
                snippet.join(STOP_EVERY_MILLIS);
            } catch (InterruptedException impossible) {
                return;
            }
        }
    }

    @Override
    protected String invoke(Method method) throws Exception {
        SnippetThread thread = new SnippetThread(method);
        synchronized (lock) {
            if (stopped) {
                throw new StoppedException();
            }
            stopping.removeIf(threads -> threads.activeCount() == 0);
            anyStopped = !stopping.isEmpty();
            thread.start(); // before stop can see it: a thread that has not started is not alive
            snippet = thread;
        }
        thread.join();
        synchronized (lock) {
            snippet = null;
        }
        if (thread.threads.stopped) {
            throw new StoppedException();
        }
        if (thread.thrown instanceof Error error) {
            throw error;
        }
        if (thread.thrown instanceof Exception exception) {
            throw exception;
        }
        return thread.value;
    }

    @Override
    public void load(ClassBytecodes[] classes) throws ClassInstallException, NotImplementedException, EngineTerminationException {
        super.load(Arrays.stream(classes)
                .map(one -> new ClassBytecodes(one.name(), withStopPoints(one.bytecodes())))
                .toArray(ClassBytecodes[]::new));
    }

    /** Called by the code of snippets. */
    public static void stopPoint() {
        if (!anyStopped) {
            return;
        }
        for (ThreadGroup group = Thread.currentThread().getThreadGroup(); group != null; group = group.getParent()) {
            if (group instanceof SnippetThreads threads && threads.stopped) {
                throw new ThreadDeath();
            }
        }
    }

    private static byte[] withStopPoints(byte[] bytecodes) {
        ClassReader reader = new ClassReader(bytecodes);
        ClassWriter writer = new ClassWriter(reader, 0); // a call without arguments and result needs no stack and changes no frame
        reader.accept(new ClassVisitor(Opcodes.ASM9, writer) {
            @Override
            public MethodVisitor visitMethod(int access, String name, String descriptor, String signature, String[] exceptions) {
                return new StopPoints(super.visitMethod(access, name, descriptor, signature, exceptions), !name.equals("<clinit>"));
            }
        }, 0);
        try {
            return writer.toByteArray();
        } catch (MethodTooLargeException full) {
            return bytecodes;
        }
    }

    /** Calls stopPoint before every jump back, and at the entry where that is wanted. */
    private static final class StopPoints extends MethodVisitor {
        private final boolean atEntry;
        private final Set<Label> before = new HashSet<>();

        StopPoints(MethodVisitor next, boolean atEntry) {
            super(Opcodes.ASM9, next);
            this.atEntry = atEntry;
        }

        @Override
        public void visitCode() {
            super.visitCode();
            if (atEntry) {
                callStopPoint();
            }
        }

        @Override
        public void visitLabel(Label label) {
            super.visitLabel(label);
            before.add(label);
        }

        @Override
        public void visitJumpInsn(int opcode, Label label) {
            if (before.contains(label)) {
                callStopPoint();
            }
            super.visitJumpInsn(opcode, label);
        }

        private void callStopPoint() {
            super.visitMethodInsn(Opcodes.INVOKESTATIC, "CellControl", "stopPoint", "()V", false);
        }
    }

    /** The threads of a snippet: the one that runs its code, and those that it starts, which may outlive it. */
    private static final class SnippetThreads extends ThreadGroup {
        private volatile boolean stopped;

        SnippetThreads() {
            super("snippet");
        }

        @Override
        public void uncaughtException(Thread thread, Throwable thrown) {
            if (!stopped) {
                super.uncaughtException(thread, thrown);
            }
        }
    }

    /** Runs the code of a snippet, and makes the text of its value, which calls the cell's code, too. */
    private static final class SnippetThread extends Thread {
        private final SnippetThreads threads;
        private final Method method;
        private String value;
        private Throwable thrown;

        SnippetThread(Method method) {
            this(new SnippetThreads(), method);
        }

        private SnippetThread(SnippetThreads threads, Method method) {
            super(threads, "snippet");
            this.threads = threads;
            this.method = method;
        }

        @Override
        public void run() {
            try {
                value = valueString(method.invoke(null));
            } catch (Throwable failed) {
                thrown = failed;
            }
        }
    }
}
