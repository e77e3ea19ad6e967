package rig

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strconv"
	"syscall"
	"time"

	"sandbox.internal/bench/measure"
)

const (
	// Rest is how long a server is left alone before its memory is read.
	Rest         = 300 * time.Millisecond
	startTimeout = 15 * time.Second
	stopTimeout  = 15 * time.Second
)

// Process is a server that the bench started, on a loopback port.
type Process struct {
	Command *exec.Cmd
	output  *os.File
	Exited  chan struct{}
	URL     string // http://127.0.0.1:PORT
	Client  *http.Client
	Took    time.Duration // from its exec until the health path answered
}

// Start starts a server and returns once GET of the health path answers 200. The output of the
// server goes to a file in dir, as it would in production, and into the error when it does not come
// up.
func Start(ctx context.Context, dir, address, health string, command *exec.Cmd) (*Process, error) {
	output, err := os.CreateTemp(dir, "output-*")
	if err != nil {
		return nil, err
	}
	command.Stdout, command.Stderr = output, output
	began := time.Now()
	if err := command.Start(); err != nil {
		output.Close()
		return nil, err
	}
	p := &Process{
		Command: command, output: output, Exited: make(chan struct{}), URL: "http://" + address,
		Client: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 4,
			ReadBufferSize: 64 << 10, WriteBufferSize: 64 << 10, DisableCompression: true}},
	}
	go func() {
		command.Wait() // how it ended shows in its output
		close(p.Exited)
	}()
	if err := p.await(ctx, health); err != nil {
		p.Stop()
		said, _ := os.ReadFile(output.Name())
		return nil, fmt.Errorf("%s: %w: %s", command.Path, err, bytes.TrimSpace(said))
	}
	p.Took = time.Since(began)
	return p, nil
}

func (p *Process) await(ctx context.Context, health string) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	for {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, p.URL+health, nil)
		if err != nil {
			return err
		}
		response, err := p.Client.Do(request)
		if err == nil {
			response.Body.Close()
			if response.StatusCode == http.StatusOK {
				return nil
			}
			err = fmt.Errorf("GET %s: %s", health, response.Status)
		}
		select {
		case <-p.Exited:
			return errors.New("server ended before its first response")
		case <-ctx.Done():
			return fmt.Errorf("server does not respond: %w", err)
		case <-time.After(100 * time.Microsecond):
		}
	}
}

// Stop ends the server, gently at first, and returns when it has ended.
func (p *Process) Stop() {
	p.Client.CloseIdleConnections()
	p.Command.Process.Signal(syscall.SIGTERM) // it may have ended already
	select {
	case <-p.Exited:
	case <-time.After(stopTimeout):
		p.Command.Process.Kill()
		<-p.Exited
	}
	p.output.Close()
}

// AtRest is the process's resident memory in MiB after it was left alone for a moment.
func (p *Process) AtRest(ctx context.Context) (float64, error) {
	if err := measure.Pause(ctx, Rest); err != nil {
		return 0, err
	}
	return p.Resident()
}

// Resident is the process's resident memory in MiB.
func (p *Process) Resident() (float64, error) { return ResidentOf(p.Command.Process.Pid) }

// ResidentOf is the resident memory of a process in MiB.
func ResidentOf(pid int) (float64, error) {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	for line := range bytes.Lines(status) {
		if value, found := bytes.CutPrefix(line, []byte("VmRSS:")); found {
			kib, err := strconv.ParseFloat(string(bytes.Fields(value)[0]), 64)
			return kib / 1024, err
		}
	}
	return 0, fmt.Errorf("process %d has no VmRSS", pid)
}

// freeAddress returns a loopback address that nothing listens on. Another process may take it
// before it is used; the server then ends at once and says why.
func freeAddress() (host string, port int, err error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", 0, err
	}
	defer listener.Close()
	address := listener.Addr().(*net.TCPAddr)
	return address.IP.String(), address.Port, nil
}

// Joined returns HOST:PORT.
func Joined(host string, port int) string { return net.JoinHostPort(host, strconv.Itoa(port)) }

// busyTime is for how long processor time is counted.
const busyTime = 5 * time.Second

// ProcessorShare is the processor time that the processes take in the next seconds, in percent of a
// core.
func ProcessorShare(ctx context.Context, pids ...int) (float64, error) {
	before, err := busy(pids)
	if err != nil {
		return 0, err
	}
	began := time.Now()
	if err := measure.Pause(ctx, busyTime); err != nil {
		return 0, err
	}
	after, err := busy(pids)
	return 100 * float64(after-before) / float64(time.Since(began)), err
}

// busy is the processor time that all threads of the processes have taken.
func busy(pids []int) (time.Duration, error) {
	var sum time.Duration
	for _, pid := range pids {
		threads, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
		if err != nil {
			return 0, err
		}
		for _, thread := range threads {
			text, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%s/schedstat", pid, thread.Name()))
			if err != nil {
				return 0, err
			}
			var running time.Duration // nanoseconds
			if _, err := fmt.Sscan(string(text), &running); err != nil {
				return 0, err
			}
			sum += running
		}
	}
	return sum, nil
}

// TwoAddresses returns two of them.
func TwoAddresses() (first, second string, err error) {
	for _, address := range []*string{&first, &second} {
		host, port, err := freeAddress()
		if err != nil {
			return "", "", err
		}
		*address = Joined(host, port)
	}
	return first, second, nil
}
