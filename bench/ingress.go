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

func (w *way) to(path string) getter { return getter{w.client, w.base + path, w.headers} }

// ways starts the ingress and the bare proxy in front of the same server.
func startWays(ctx context.Context, run *bench, behind *process) (ours, floor *way, err error) {
	dir, err := run.directory("ingress")
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
	command := exec.Command(filepath.Join(run.bin, "sandbox-ingress"), "--mode", "uri", "--routes",
		routes, "--listen", address, "--admin", admin)
	ingress, err := start(ctx, dir, admin, "/healthz", command)
	if err != nil {
		return nil, nil, err
	}
	ingress.url = "http://" + address
	forward, err := startForward(ctx, run, behind.url)
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

// ingress has what the ingress adds to a bare reverse proxy.
func ingress() group {
	return sharing(withWays,
		one(row{name: "ingress-1", what: "GET through the ingress, one client",
			floor: "the same through a bare `httputil.ReverseProxy`",
			unit:  perSecond, target: ratio(0.9)},
			func(ctx context.Context, run *bench, with ways) (pair, error) {
				return measureIngressRate(ctx, run, with, 1)
			}),
		one(row{name: "ingress-16", what: "GET through the ingress, 16 clients",
			floor: "the same through a bare `httputil.ReverseProxy`",
			unit:  perSecond, target: ratio(0.9)},
			func(ctx context.Context, run *bench, with ways) (pair, error) {
				return measureIngressRate(ctx, run, with, clients)
			}),
		one(row{name: "ingress-download", what: "1 GiB downloaded through the ingress",
			floor: "the same through a bare `httputil.ReverseProxy`",
			unit:  mebiPerSec, target: ratio(0.9)},
			measureIngressDownload),
		one(row{name: "ingress-rss", what: "resident memory of the ingress during that download, at its highest",
			floor: "a bare `httputil.ReverseProxy` during the same",
			unit:  mebibytes, target: ours(40)},
			measureIngressMemory))
}

// ways lead to the same server.
type ways struct{ ours, floor *way }

func withWays(ctx context.Context, run *bench, do func(ways) error) error {
	behind, err := startFloor(ctx, run)
	if err != nil {
		return err
	}
	defer behind.stop()
	if err := behind.prebuild(ctx, []byte(smallAnswer)); err != nil {
		return err
	}
	ours, floor, err := startWays(ctx, run, behind)
	if err != nil {
		return err
	}
	defer ours.stop()
	defer floor.stop()
	return do(ways{ours, floor})
}

// measureIngressRate measures how many small answers a second come both ways, each of them whole.
func measureIngressRate(ctx context.Context, run *bench, with ways, atOnce int) (pair, error) {
	return run.inTurns(ctx, run.rounds(31, 5), eachSide(with.ours, with.floor, func(w *way, each *requests) figure {
		from := w.to("/prebuilt")
		return func(ctx context.Context) (float64, error) {
			began := time.Now()
			err := all(ctx, ingressRequests, atOnce, func(ctx context.Context, _ int) error {
				return each.time(func() error { return from.expect(ctx, []byte(smallAnswer)) })
			})
			return ingressRequests / time.Since(began).Seconds(), err
		}
	}))
}

// bigFile is a file to be downloaded.
type bigFile struct {
	content
	path   string
	buffer []byte
}

func newBigFile(run *bench) (bigFile, error) {
	dir, err := run.directory("ingress-download")
	if err != nil {
		return bigFile{}, err
	}
	file := bigFile{newContent(run.bytes(ingressDownload)), filepath.Join(dir, "source"), make([]byte, 256<<10)}
	return file, file.save(file.path)
}

// download downloads the file one way and compares each byte.
func (f bigFile) download(ctx context.Context, w *way) error {
	response, err := w.to("/download?path=" + url.QueryEscape(f.path)).open(ctx)
	if err != nil {
		return err
	}
	return f.compare(response, f.buffer)
}

func measureIngressDownload(ctx context.Context, run *bench, with ways) (pair, error) {
	file, err := newBigFile(run)
	if err != nil {
		return pair{}, err
	}
	side := func(w *way) figure {
		return func(ctx context.Context) (float64, error) {
			began := time.Now()
			err := file.download(ctx, w)
			return speed(file.size, began), err
		}
	}
	return run.inTurns(ctx, run.rounds(7, 3), sides{ours: side(with.ours), floor: side(with.floor)})
}

// measureIngressMemory reads the memory of both ways during a download.
func measureIngressMemory(ctx context.Context, run *bench, with ways) (pair, error) {
	file, err := newBigFile(run)
	if err != nil {
		return pair{}, err
	}
	side := func(w *way) figure {
		return func(ctx context.Context) (float64, error) {
			done := make(chan error, 1)
			go func() { done <- file.download(ctx, w) }()
			return w.highest(done)
		}
	}
	return run.inTurns(ctx, run.rounds(3, 1), sides{ours: side(with.ours), floor: side(with.floor)})
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
