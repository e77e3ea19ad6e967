package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"sandbox.internal/clients/cli/internal/show"
	sandbox "sandbox.internal/clients/go"
)

// The results of a check.
const (
	checkOK   = "ok"
	checkWarn = "warn"
	checkFail = "fail"
)

// check is what doctor found out about one thing.
type check struct {
	Name   string `json:"name"`
	Result string `json:"result"`
	Detail string `json:"detail"`
	Next   string `json:"next,omitempty"` // what to do about it
}

const (
	// checkTimeout bounds the checks of the service together, and each of the machine's.
	checkTimeout = 10 * time.Second
	// maxSkew is how far apart the clocks may be: expiries and signatures are absolute times.
	maxSkew = 5 * time.Second
	// maxCheckAnswer bounds an answer of the service or an engine, in bytes.
	maxCheckAnswer = 1 << 20
)

func doctorCommand(t *tool) *cobra.Command {
	command := &cobra.Command{
		Use:   "doctor [flags]",
		Short: "Check the service and this machine, and say what to do",
		Long: "Check that the service can be reached, takes the key, streams, and has the same\n" +
			"time; and, when it is on this machine, its engine, network, kernel, cgroups and\n" +
			"disk. The exit code is 1 when something is broken.",
		Example: "  sandbox doctor",
		Args:    arguments(0, 0, ""),
		RunE:    func(c *cobra.Command, _ []string) error { return t.doctor(c.Context()) },
	}
	t.registerOutput(command, "names and results")
	return command
}

func (t *tool) doctor(ctx context.Context) error {
	c, err := t.connect()
	if err != nil {
		return err
	}
	checks, version := t.checkService(ctx, c)
	if onThisMachine(c.url) {
		checks = append(checks, t.checkMachine(ctx, c, version)...)
	}
	if err := t.showChecks(checks); err != nil {
		return err
	}
	for _, check := range checks {
		if check.Result == checkFail {
			return exitError{ExitFailed}
		}
	}
	return nil
}

func (t *tool) showChecks(checks []check) error {
	if t.Printer.Quiet || t.Printer.Format != show.FormatTable {
		return show.All(t.Printer, show.View[check]{
			ID: func(c check) string { return c.Name + " " + c.Result },
			Columns: []show.Column[check]{
				{Title: "RESULT", Value: func(c check) string { return c.Result }},
				{Title: "CHECK", Value: func(c check) string { return c.Name }},
				{Title: "DETAIL", Value: func(c check) string { return c.Detail }},
				{Title: "NEXT", Value: func(c check) string { return c.Next }},
			},
		}, checks)
	}
	for _, check := range checks {
		line := fmt.Sprintf("%-4s  %-9s %s\n", check.Result, check.Name, t.Clean(check.Detail))
		if check.Next != "" {
			line += fmt.Sprintf("      %s %s\n", t.Symbol("→", "->"), t.Clean(check.Next))
		}
		if _, err := fmt.Fprint(t.Stdout, line); err != nil {
			return err
		}
	}
	return nil
}

// onThisMachine reports whether a URL is that of a loopback address.
func onThisMachine(text string) bool {
	parsed, err := url.Parse(text)
	if err != nil {
		return false
	}
	ip := net.ParseIP(parsed.Hostname())
	return parsed.Hostname() == "localhost" || ip != nil && ip.IsLoopback()
}

// checkService checks what can be seen of the service from here. Without an answer there is
// nothing more to check. It also returns what the service says about itself, nil when it does not.
func (t *tool) checkService(ctx context.Context, c *connection) ([]check, *sandbox.Version) {
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	start := time.Now()
	response, err := c.service.GetHealth(ctx)
	if err == nil {
		_ = response.Body.Close()
		if response.StatusCode != http.StatusOK {
			err = fmt.Errorf("status %d", response.StatusCode)
		}
	}
	took := time.Since(start)
	if err != nil {
		return []check{{"service", checkFail, c.url + ": " + err.Error(),
			"start it (make run), or name it: --url, $" + sandbox.URLVariable + " or sandbox login"}}, nil
	}
	checks := []check{{"service", checkOK, fmt.Sprintf("%s answers in %s", c.url, duration(took)), ""}}
	checks = append(checks, checkReady(ctx, c)...)
	checks = append(checks, checkClock(response, start.Add(took/2)), checkKey(ctx, c))
	version, err := c.client.Version(ctx)
	if err != nil {
		return checks, nil
	}
	checks = append(checks, compareVersions(ownBuild(), version))
	checks = append(checks, checkStreams(ctx, c))
	return checks, &version
}

// checkReady asks whether the service can make sandboxes. That it answers says only that it runs.
func checkReady(ctx context.Context, c *connection) []check {
	const next = "look at the log of the service, and at docs/runbook.md, Engine gone and Disk full"
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, strings.TrimRight(c.url, "/")+"/readyz", nil)
	if err != nil {
		return []check{{"ready", checkFail, err.Error(), ""}}
	}
	response, err := c.http.Do(request)
	if err != nil {
		return []check{{"ready", checkFail, err.Error(), next}}
	}
	defer func() { _ = response.Body.Close() }()
	var answer struct{ Message string }
	err = json.NewDecoder(io.LimitReader(response.Body, maxCheckAnswer)).Decode(&answer)
	switch {
	case response.StatusCode == http.StatusNotFound: // a proxy passes the API alone
		return nil
	case response.StatusCode == http.StatusOK:
		return []check{{"ready", checkOK, "sandboxes can be made", ""}}
	case err != nil || answer.Message == "":
		answer.Message = response.Status
	}
	return []check{{"ready", checkFail, answer.Message, next}}
}

func checkClock(response *http.Response, now time.Time) check {
	there, err := http.ParseTime(response.Header.Get("Date"))
	if err != nil {
		return check{"clock", checkWarn, "the service does not say what time it is",
			"look at the proxies between here and the service: they remove the header Date"}
	}
	skew := now.Sub(there).Abs()
	if skew > maxSkew {
		return check{"clock", checkWarn, fmt.Sprintf("the clocks differ by %s", roughly(skew)),
			"synchronise them (NTP): expiries are absolute times"}
	}
	return check{"clock", checkOK, "the same time here and there", ""}
}

func checkKey(ctx context.Context, c *connection) check {
	count := 0
	for _, err := range c.client.List(ctx, nil) {
		switch {
		case errors.Is(err, sandbox.ErrUnauthorized):
			return check{"key", checkFail, err.Error(), "set $" + sandbox.KeyVariable + ", or run sandbox login"}
		case err != nil:
			return check{"key", checkFail, err.Error(), "look at the log of the service"}
		}
		count++
	}
	if !c.secured {
		return check{"key", checkWarn, "the service takes requests without a key",
			"configure server.api_key, unless it can be reached by you alone"}
	}
	return check{"key", checkOK, fmt.Sprintf("good; it sees %d sandboxes", count), ""}
}

func compareVersions(own, service sandbox.Version) check {
	detail := fmt.Sprintf("tool %s, service %s", own.Version, service.Version)
	if own.Version != service.Version {
		return check{"version", checkWarn, detail, "use the tool of the same release"}
	}
	return check{"version", checkOK, detail, ""}
}

// checkStreams opens a stream of events: proxies that collect answers hold it back.
func checkStreams(ctx context.Context, c *connection) check {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	opened, failure := false, errors.New("the stream ended before it began")
	for _, err := range c.client.Events(ctx, &sandbox.EventOptions{OnOpen: func() {
		opened = true
		cancel()
	}}) {
		if err != nil {
			failure = err
		}
	}
	if !opened {
		return check{"streams", checkFail, failure.Error(),
			"let the proxies between here and the service pass text/event-stream on unbuffered"}
	}
	return check{"streams", checkOK, "events arrive as they happen", ""}
}
