package main

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
)

const (
	startTimeout = 15 * time.Second
	stopTimeout  = 15 * time.Second
)

// process is a server that the bench started, on a loopback port.
type process struct {
	command *exec.Cmd
	output  *os.File
	exited  chan struct{}
	url     string // http://127.0.0.1:PORT
	client  *http.Client
	took    time.Duration // from its exec until the health path answered
}

// start starts a server and returns once GET of the health path answers 200. What the server prints
// goes to a file in dir, as it would in production, and into the error when it does not come up.
func start(ctx context.Context, dir, address, health string, command *exec.Cmd) (*process, error) {
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
	p := &process{
		command: command, output: output, exited: make(chan struct{}), url: "http://" + address,
		client: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 4,
			ReadBufferSize: 64 << 10, WriteBufferSize: 64 << 10, DisableCompression: true}},
	}
	go func() {
		command.Wait() // how it ended shows in its output
		close(p.exited)
	}()
	if err := p.await(ctx, health); err != nil {
		p.stop()
		said, _ := os.ReadFile(output.Name())
		return nil, fmt.Errorf("%s: %w: %s", command.Path, err, bytes.TrimSpace(said))
	}
	p.took = time.Since(began)
	return p, nil
}

func (p *process) await(ctx context.Context, health string) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	for {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, p.url+health, nil)
		if err != nil {
			return err
		}
		response, err := p.client.Do(request)
		if err == nil {
			response.Body.Close()
			if response.StatusCode == http.StatusOK {
				return nil
			}
			err = fmt.Errorf("GET %s: %s", health, response.Status)
		}
		select {
		case <-p.exited:
			return errors.New("server ended before its first response")
		case <-ctx.Done():
			return fmt.Errorf("server does not respond: %w", err)
		case <-time.After(100 * time.Microsecond):
		}
	}
}

// stop ends the server, gently at first, and returns when it has ended.
func (p *process) stop() {
	p.client.CloseIdleConnections()
	p.command.Process.Signal(syscall.SIGTERM) // it may have ended already
	select {
	case <-p.exited:
	case <-time.After(stopTimeout):
		p.command.Process.Kill()
		<-p.exited
	}
	p.output.Close()
}

// resident is the process's resident memory in MiB.
func (p *process) resident() (float64, error) { return residentOf(p.command.Process.Pid) }

// residentOf is the resident memory of a process in MiB.
func residentOf(pid int) (float64, error) {
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

func joined(host string, port int) string { return net.JoinHostPort(host, strconv.Itoa(port)) }
