package listen_test

import (
	"context"
	"net"
	"net/http"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/rs/zerolog"
	"golang.org/x/sys/unix"

	"sandbox.internal/openapi/serve/listen"
	"sandbox.internal/test/wait"
)

// TestServeWithoutEpollWatches: other processes of the user have used up what the kernel has to
// watch connections with. Serve goes on.
func TestServeWithoutEpollWatches(t *testing.T) {
	// In a process of its own, which cannot get them back.
	const inside = "SERVE_TEST_WITHOUT_EPOLL"
	if os.Getenv(inside) == "" {
		child := wait.Command(t, "/proc/self/exe", "-test.run=^TestServeWithoutEpollWatches$", "-test.v")
		child.Env = append(os.Environ(), inside+"=1")
		if output, err := child.CombinedOutput(); err != nil {
			t.Errorf("%v\n%s", err, output)
		}
		return
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	refuseEpollWatches(t)
	logged := make(lines, 100)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	served := make(chan error, 1)
	go func() {
		served <- listen.Serve(ctx, ln, http.NotFoundHandler(), listen.Options{Logger: zerolog.New(logged)})
	}()
	connect(t, ln.Addr().(*net.TCPAddr).Port)
	select {
	case err := <-served:
		t.Fatalf("Serve has ended: %v", err)
	case line := <-logged:
		if !strings.Contains(line, "no space left on device; retrying") {
			t.Error(line)
		}
	case <-time.After(wait.Patience()):
		t.Error("the connection was not accepted")
	}
	cancel()
	if err := wait.For(t, "the end of the server", served); err != nil {
		t.Error(err)
	}
}

type lines chan string

func (l lines) Write(p []byte) (int, error) {
	l <- string(p)
	return len(p), nil
}

// connect connects to the port, without the poller of Go's runtime.
func connect(t *testing.T, port int) {
	t.Helper()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(fd) })
	if err := unix.Connect(fd, &unix.SockaddrInet4{Port: port, Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		t.Fatal(err)
	}
}

// refuseEpollWatches makes the kernel refuse this process what it refuses when
// fs.epoll.max_user_watches is reached.
func refuseEpollWatches(t *testing.T) {
	t.Helper()
	const secondArgument = 24 // its lower half, in struct seccomp_data
	filter := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS}, // the number of the system call
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, Jf: 3, K: unix.SYS_EPOLL_CTL},
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: secondArgument},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, Jf: 1, K: unix.EPOLL_CTL_ADD},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ERRNO | uint32(unix.ENOSPC)},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW},
	}
	program := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	runtime.LockOSThread() // which shares its filter with the others
	defer runtime.UnlockOSThread()
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		t.Fatal(err)
	}
	if _, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_TSYNC,
		uintptr(unsafe.Pointer(&program))); errno != 0 {
		t.Fatal(errno)
	}
}
