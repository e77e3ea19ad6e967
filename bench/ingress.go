package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

const (
	ingressBox   = "bench"
	ingressToken = "the-token-of-the-bench"
	// short rounds, and many of them, because the speed of the machine changes from second to
	// second
	ingressRequests = 1500
	ingressDownload = 1 << 30
	smallAnswer     = `{"status":"a small answer, as most of them are"}`
)

// way leads to the floor server through another proxy.
type way struct {
	*process
	base    string // the URL before the path
	headers http.Header
}

func (w *way) get(ctx context.Context, path string) (*http.Response, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, w.base+path, nil)
	if err != nil {
		return nil, err
	}
	request.Header = w.headers.Clone()
	return send(w.client, request, http.StatusOK)
}

// ways starts the ingress and the bare proxy in front of the same server.
func (b *bench) ways(ctx context.Context, behind *process) (ours, floor *way, err error) {
	dir, err := b.directory("ingress")
	if err != nil {
		return nil, nil, err
	}
	port := behind.url[strings.LastIndexByte(behind.url, ':')+1:]
	routes := filepath.Join(dir, "routes.toml")
	if err := os.WriteFile(routes,
		fmt.Appendf(nil, "[[routes]]\nsandbox = %q\nhost = \"127.0.0.1\"\ntoken = %q\n", ingressBox,
			ingressToken), 0o600); err != nil {
		return nil, nil, err
	}
	prefix, headers := "/"+ingressBox+"/"+port, http.Header{"X-Execd-Access-Token": {ingressToken}}
	address, admin, err := twoAddresses()
	if err != nil {
		return nil, nil, err
	}
	command := exec.Command(filepath.Join(b.bin, "sandbox-ingress"), "--mode", "uri", "--routes",
		routes, "--listen", address, "--admin", admin)
	ingress, err := start(ctx, dir, admin, "/healthz", command)
	if err != nil {
		return nil, nil, err
	}
	ingress.url = "http://" + address
	forward, err := b.startForward(ctx, behind.url)
	if err != nil {
		ingress.stop()
		return nil, nil, err
	}
	for _, p := range []*process{ingress, forward} {
		p.client.Transport.(*http.Transport).MaxIdleConnsPerHost = clients
	}
	return &way{ingress, ingress.url + prefix, headers}, &way{forward, forward.url, http.Header{}},
		nil
}

func twoAddresses() (first, second string, err error) {
	for _, address := range []*string{&first, &second} {
		host, port, err := freeAddress()
		if err != nil {
			return "", "", err
		}
		*address = joined(host, port)
	}
	return first, second, nil
}

// measureIngress measures what the ingress adds to a bare reverse proxy.
func (b *bench) measureIngress(ctx context.Context) error {
	behind, err := b.startFloor(ctx)
	if err != nil {
		return err
	}
	defer behind.stop()
	if err := behind.prebuild(ctx, []byte(smallAnswer)); err != nil {
		return err
	}
	ours, floor, err := b.ways(ctx, behind)
	if err != nil {
		return err
	}
	defer ours.stop()
	defer floor.stop()
	for name, atOnce := range map[string]int{rowIngressOne: 1, rowIngressMany: clients} {
		if !b.selected(name) {
			continue
		}
		if err := b.measureIngressRate(ctx, name, atOnce, ours, floor); err != nil {
			return err
		}
	}
	if !b.selected(rowIngressDownload) && !b.selected(rowIngressMemory) {
		return nil
	}
	return b.measureIngressDownload(ctx, ours, floor)
}

// measureIngressRate measures how many small answers a second come both ways, each of them whole.
func (b *bench) measureIngressRate(ctx context.Context, name string, atOnce int,
	ours, floor *way) error {
	side := func(w *way, each *requests) func(context.Context) (float64, error) {
		from := getter{w.client, w.base + "/prebuilt", w.headers}
		return func(ctx context.Context) (float64, error) {
			began := time.Now()
			err := all(ctx, ingressRequests, atOnce, func(ctx context.Context, _ int) error {
				return each.time(func() error { return from.expect(ctx, []byte(smallAnswer)) })
			})
			return ingressRequests / time.Since(began).Seconds(), err
		}
	}
	var took, floorTook requests
	return b.inTurns(ctx, name, b.rounds(31, 5), sides{
		ours: side(ours, &took), floor: side(floor, &floorTook), oursRequests: &took,
		floorRequests: &floorTook,
	})
}

// measureIngressDownload downloads the same bytes both ways, compares each of them, and reads
// the memory meanwhile.
func (b *bench) measureIngressDownload(ctx context.Context, ours, floor *way) error {
	dir, err := b.directory("ingress-download")
	if err != nil {
		return err
	}
	c := newContent(b.bytes(ingressDownload))
	source := filepath.Join(dir, "source")
	if err := c.save(source); err != nil {
		return err
	}
	buffer := make([]byte, 256<<10)
	download := func(ctx context.Context, w *way) error {
		response, err := w.get(ctx, "/download?path="+url.QueryEscape(source))
		if err != nil {
			return err
		}
		return compare(response, c.checker(), buffer)
	}
	if b.selected(rowIngressDownload) {
		side := func(w *way) func(context.Context) (float64, error) {
			return func(ctx context.Context) (float64, error) {
				began := time.Now()
				err := download(ctx, w)
				return speed(c.size, began), err
			}
		}
		if err := b.inTurns(ctx, rowIngressDownload, b.rounds(7, 3),
			sides{ours: side(ours), floor: side(floor)}); err != nil {
			return err
		}
	}
	if !b.selected(rowIngressMemory) {
		return nil
	}
	side := func(w *way) func(context.Context) (float64, error) {
		return func(ctx context.Context) (float64, error) {
			done := make(chan error, 1)
			go func() { done <- download(ctx, w) }()
			return w.highest(done)
		}
	}
	return b.inTurns(ctx, rowIngressMemory, b.rounds(3, 1),
		sides{ours: side(ours), floor: side(floor)})
}

// highest is the largest resident memory of the process until done brings something.
func (w *way) highest(done <-chan error) (float64, error) {
	var most float64
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		now, err := w.resident()
		most = max(most, now)
		select {
		case failed := <-done:
			return most, errors.Join(err, failed)
		case <-tick.C:
		}
	}
}
