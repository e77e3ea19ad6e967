// Package ingress has the rows of the ingress.
package ingress

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

	"sandbox.internal/bench/measure"
	"sandbox.internal/bench/rig"
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
	*rig.Process
	base    string // the URL before the path
	headers http.Header
}

func (w *way) to(path string) rig.Getter {
	return rig.Getter{Client: w.Client, URL: w.base + path, Header: w.headers}
}

// ways starts the ingress and the bare proxy in front of the same server.
func startWays(ctx context.Context, run *measure.Run, behind *rig.Process) (ours, floor *way, err error) {
	dir, err := run.Directory("ingress")
	if err != nil {
		return nil, nil, err
	}
	port := behind.URL[strings.LastIndexByte(behind.URL, ':')+1:]
	routes := filepath.Join(dir, "routes.toml")
	if err := os.WriteFile(routes,
		fmt.Appendf(nil, "[[routes]]\nsandbox = %q\nhost = \"127.0.0.1\"\ntoken = %q\n", ingressBox,
			ingressToken), 0o600); err != nil {
		return nil, nil, err
	}
	prefix, headers := "/"+ingressBox+"/"+port, http.Header{"X-Execd-Access-Token": {ingressToken}}
	address, admin, err := rig.TwoAddresses()
	if err != nil {
		return nil, nil, err
	}
	command := exec.Command(filepath.Join(run.Bin, "sandbox-ingress"), "--mode", "uri", "--routes",
		routes, "--listen", address, "--admin", admin)
	ingress, err := rig.Start(ctx, dir, admin, "/healthz", command)
	if err != nil {
		return nil, nil, err
	}
	ingress.URL = "http://" + address
	forward, err := rig.StartForward(ctx, run, behind.URL)
	if err != nil {
		ingress.Stop()
		return nil, nil, err
	}
	for _, p := range []*rig.Process{ingress, forward} {
		p.Client.Transport.(*http.Transport).MaxIdleConnsPerHost = measure.Clients
	}
	return &way{ingress, ingress.URL + prefix, headers}, &way{forward, forward.URL, http.Header{}},
		nil
}

// Rows has what the ingress adds to a bare reverse proxy.
func Rows() measure.Group {
	return measure.Sharing(withWays,
		measure.Single(measure.Row{Name: "ingress-1", What: "GET through the ingress, one client",
			Floor: "the same through a bare `httputil.ReverseProxy`",
			Unit:  measure.PerSecond, Target: measure.Ratio(0.9)},
			func(ctx context.Context, run *measure.Run, with ways) (measure.Pair, error) {
				return measureIngressRate(ctx, run, with, 1)
			}),
		measure.Single(measure.Row{Name: "ingress-16", What: "GET through the ingress, 16 clients",
			Floor: "the same through a bare `httputil.ReverseProxy`",
			Unit:  measure.PerSecond, Target: measure.Ratio(0.9)},
			func(ctx context.Context, run *measure.Run, with ways) (measure.Pair, error) {
				return measureIngressRate(ctx, run, with, measure.Clients)
			}),
		measure.Single(measure.Row{Name: "ingress-download", What: "1 GiB downloaded through the ingress",
			Floor: "the same through a bare `httputil.ReverseProxy`",
			Unit:  measure.MebiPerSec, Target: measure.Ratio(0.9)},
			measureIngressDownload),
		measure.Single(measure.Row{Name: "ingress-rss", What: "resident memory of the ingress during that download, at its highest",
			Floor: "a bare `httputil.ReverseProxy` during the same",
			Unit:  measure.Mebibytes, Target: measure.Ours(40)},
			measureIngressMemory))
}

// ways lead to the same server.
type ways struct{ ours, floor *way }

func withWays(ctx context.Context, run *measure.Run, do func(ways) error) error {
	behind, err := rig.StartFloor(ctx, run)
	if err != nil {
		return err
	}
	defer behind.Stop()
	if err := behind.Prebuild(ctx, []byte(smallAnswer)); err != nil {
		return err
	}
	ours, floor, err := startWays(ctx, run, behind)
	if err != nil {
		return err
	}
	defer ours.Stop()
	defer floor.Stop()
	return do(ways{ours, floor})
}

// measureIngressRate measures how many small answers a second come both ways, each of them whole.
func measureIngressRate(ctx context.Context, run *measure.Run, with ways, atOnce int) (measure.Pair, error) {
	return run.InTurns(ctx, run.Rounds(31, 5), measure.EachSide(with.ours, with.floor, func(w *way, each *measure.Requests) measure.Figure {
		from := w.to("/prebuilt")
		return func(ctx context.Context) (float64, error) {
			began := time.Now()
			err := measure.AtOnce(ctx, ingressRequests, atOnce, func(ctx context.Context, _ int) error {
				return each.Time(func() error { return from.Expect(ctx, []byte(smallAnswer)) })
			})
			return ingressRequests / time.Since(began).Seconds(), err
		}
	}))
}

// bigFile is a file to be downloaded.
type bigFile struct {
	rig.Content
	path   string
	buffer []byte
}

func newBigFile(run *measure.Run) (bigFile, error) {
	dir, err := run.Directory("ingress-download")
	if err != nil {
		return bigFile{}, err
	}
	file := bigFile{rig.NewContent(run.Bytes(ingressDownload)), filepath.Join(dir, "source"), make([]byte, 256<<10)}
	return file, file.Save(file.path)
}

// download downloads the file one way and compares each byte.
func (f bigFile) download(ctx context.Context, w *way) error {
	response, err := w.to("/download?path=" + url.QueryEscape(f.path)).Open(ctx)
	if err != nil {
		return err
	}
	return f.Compare(response, f.buffer)
}

func measureIngressDownload(ctx context.Context, run *measure.Run, with ways) (measure.Pair, error) {
	file, err := newBigFile(run)
	if err != nil {
		return measure.Pair{}, err
	}
	side := func(w *way) measure.Figure {
		return func(ctx context.Context) (float64, error) {
			began := time.Now()
			err := file.download(ctx, w)
			return measure.Speed(file.Size, began), err
		}
	}
	return run.InTurns(ctx, run.Rounds(7, 3), measure.Sides{Ours: side(with.ours), Floor: side(with.floor)})
}

// measureIngressMemory reads the memory of both ways during a download.
func measureIngressMemory(ctx context.Context, run *measure.Run, with ways) (measure.Pair, error) {
	file, err := newBigFile(run)
	if err != nil {
		return measure.Pair{}, err
	}
	side := func(w *way) measure.Figure {
		return func(ctx context.Context) (float64, error) {
			done := make(chan error, 1)
			go func() { done <- file.download(ctx, w) }()
			return w.highest(done)
		}
	}
	return run.InTurns(ctx, run.Rounds(3, 1), measure.Sides{Ours: side(with.ours), Floor: side(with.floor)})
}

// highest is the largest resident memory of the process until done brings something.
func (w *way) highest(done <-chan error) (float64, error) {
	var most float64
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		now, err := w.Resident()
		most = max(most, now)
		select {
		case failed := <-done:
			return most, errors.Join(err, failed)
		case <-tick.C:
		}
	}
}
