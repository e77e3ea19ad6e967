package e2b

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"sandbox.internal/server/lifecycle"
)

const (
	// changeWait is how many seconds a pause, a resume or a removal may take until it is answered.
	changeWait = 30
	// defaultTimeout is the timeout of a connect that names none, in seconds.
	defaultTimeout = 300
	// maxTimeout is the longest timeout, in seconds.
	maxTimeout = int64(lifecycle.MaxTimeout / time.Second)
)

func (x *exchange) get(id string) {
	sandbox, ok := x.find(id)
	if !ok {
		return
	}
	if token, ok := x.token(id); ok {
		shown := x.edge.detailed(sandbox, token)
		shown.Network = x.network(sandbox)
		sendJSON(x.w, http.StatusOK, shown)
	}
}

func (x *exchange) kill(id string) {
	if _, ok := x.find(id); !ok {
		return
	}
	switch deleted := x.askAndWait(changeWait, http.MethodDelete, sandboxesPath+"/"+id, nil); {
	case deleted.OK():
		x.w.WriteHeader(http.StatusNoContent)
	case deleted.Status == http.StatusNotFound, deleted.Status == http.StatusConflict: // it ended meanwhile
		x.notFound(id)
	default:
		x.refuse(deleted)
	}
}

// keepsMemory is the rule of a field where a sandbox cannot be paused without its memory.
const keepsMemory = "must be true or absent: a sandbox is paused with its memory"

// timeoutBody is the body of requests that move the deadline.
type timeoutBody struct {
	Timeout   *int64 `json:"timeout"`
	Duration  *int64 `json:"duration"`  // of refreshes
	AutoPause *bool  `json:"autoPause"` // of resume
	Memory    *bool  `json:"memory"`
}

// readTimeout reads the timeout of a request in seconds, or returns what stands for none.
func (x *exchange) readTimeout(none, least int64) (int64, bool) {
	var body timeoutBody
	if !x.readBody(&body) {
		return 0, false
	}
	timeout := none
	for _, given := range []*int64{body.Timeout, body.Duration} {
		if given != nil {
			timeout = *given
		}
	}
	switch {
	case body.Memory != nil && !*body.Memory:
		sendProblem(x.w, http.StatusBadRequest, "memory: must be true or absent: a sandbox goes on as it was paused")
	case body.AutoPause != nil:
		sendProblem(x.w, http.StatusBadRequest, "autoPause: is not supported when a sandbox is resumed: give it when the sandbox is created")
	case timeout < least || timeout > maxTimeout:
		sendProblem(x.w, http.StatusBadRequest, fmt.Sprintf("timeout: must be within %d and %d seconds, not %d", max(least, 0), maxTimeout, timeout))
	default:
		return timeout, true
	}
	return 0, false
}

// connect resumes a paused sandbox, and makes a running one live at least as long as asked for.
func (x *exchange) connect(id string) {
	timeout, ok := x.readTimeout(defaultTimeout, 1)
	if !ok {
		return
	}
	sandbox, ok := x.find(id)
	if !ok {
		return
	}
	if sandbox.Status.State.Transient() {
		if settled, err := x.edge.Backend.AwaitStable(x.r.Context(), id, changeWait*time.Second); err == nil {
			sandbox = settled
		}
	}
	status := http.StatusOK
	deadline := x.edge.Clock().Add(time.Duration(timeout) * time.Second)
	if sandbox.Status.State == lifecycle.StatePaused {
		// The deadline first: the old one may have come, and the sandbox would be paused again.
		status = http.StatusCreated
		if !x.moveDeadline(sandbox, deadline, timeout) {
			return
		}
		resumed := x.askAndWait(changeWait, http.MethodPost, sandboxesPath+"/"+id+"/resume", nil)
		if !resumed.OK() && resumed.Status != http.StatusConflict { // another client resumed it
			x.refuse(resumed)
			return
		}
	} else if deadline.After(endOf(sandbox)) && !x.moveDeadline(sandbox, deadline, timeout) {
		return
	}
	token, ok := x.token(id)
	if !ok {
		return
	}
	latest, ok := x.find(id)
	if ok {
		sendJSON(x.w, status, x.edge.detailed(latest, token))
	}
}

func (x *exchange) setTimeout(id string) {
	timeout, ok := x.readTimeout(-1, -1)
	if !ok {
		return
	}
	sandbox, ok := x.find(id)
	switch {
	case !ok:
	case timeout <= 0:
		x.kill(id)
	case x.moveDeadline(sandbox, x.edge.Clock().Add(time.Duration(timeout)*time.Second), timeout):
		x.w.WriteHeader(http.StatusNoContent)
	}
}

// refresh never shortens.
func (x *exchange) refresh(id string) {
	timeout, ok := x.readTimeout(0, 0)
	if !ok {
		return
	}
	sandbox, ok := x.find(id)
	if !ok {
		return
	}
	deadline := x.edge.Clock().Add(time.Duration(timeout) * time.Second)
	if !deadline.After(endOf(sandbox)) || x.moveDeadline(sandbox, deadline, timeout) {
		x.w.WriteHeader(http.StatusNoContent)
	}
}

// moveDeadline sets the deadline of a sandbox, and the service's own expiry where that is earlier.
// When it reports false, the client has been answered.
func (x *exchange) moveDeadline(sandbox lifecycle.Sandbox, deadline time.Time, timeout int64) bool {
	path := sandboxesPath + "/" + sandbox.ID
	if most := int64(x.edge.MaxTimeout(sandbox.Owner) / time.Second); timeout > most {
		sendProblem(x.w, http.StatusBadRequest, fmt.Sprintf("timeout: must be at most %d seconds, which the key of the sandbox allows, not %d", most, timeout))
		return false
	}
	if expiry := x.edge.expiryFor(deadline, sandbox.Metadata); expiry.After(sandbox.ExpiresAt) {
		renewed := x.ask(http.MethodPost, path+"/renew-expiration", nil, map[string]string{"expiresAt": stamp(expiry)})
		if !renewed.OK() && (renewed.Status == http.StatusForbidden || !x.edge.outlives(x.r.Context(), sandbox.ID, expiry)) {
			x.refuse(renewed)
			return false
		}
	}
	changed := x.ask(http.MethodPatch, path+"/metadata", nil,
		map[string]string{deadlineKey: stamp(deadline), timeoutKey: strconv.FormatInt(timeout, 10)})
	if !changed.OK() {
		x.refuse(changed)
		return false
	}
	x.edge.deadlines.set(sandbox.ID, deadline)
	return true
}

func stamp(at time.Time) string { return at.UTC().Format(time.RFC3339Nano) }

func (x *exchange) pause(id string) {
	var body struct {
		Memory *bool `json:"memory"`
	}
	if !x.readBody(&body) {
		return
	}
	var how any
	if body.Memory != nil && !*body.Memory {
		if x.edge.Suspend == nil {
			sendProblem(x.w, http.StatusBadRequest, "memory: "+keepsMemory)
			return
		}
		how = map[string]any{"filesOnly": true}
	}
	sandbox, ok := x.find(id)
	if !ok {
		return
	}
	if sandbox.Status.State == lifecycle.StatePaused {
		sendProblem(x.w, http.StatusConflict, fmt.Sprintf("sandbox %s: is paused already", externalID(id)))
		return
	}
	paused := x.askAndWait(changeWait, http.MethodPost, sandboxesPath+"/"+id+"/pause", how)
	if !paused.OK() {
		x.refuse(paused)
		return
	}
	x.edge.deadlines.set(id, x.edge.Clock()) // a paused sandbox does not expire
	x.w.WriteHeader(http.StatusNoContent)
}

// alias answers whether there is a template with a name.
func (x *exchange) alias(name string) {
	if _, ok := x.edge.Templates.Named[name]; !ok {
		sendProblem(x.w, http.StatusNotFound, fmt.Sprintf("template %.128s: not found", name))
		return
	}
	sendJSON(x.w, http.StatusOK, map[string]any{"templateID": name, "public": true})
}

// templates lists the templates.
func (x *exchange) templates() {
	list := []map[string]any{}
	for _, name := range x.edge.Templates.names() {
		list = append(list, map[string]any{
			"templateID": name, "buildID": name, "aliases": []string{name}, "names": []string{name}, "public": true,
			"buildStatus": "ready", "envdVersion": envdVersion, "cpuCount": 0, "memoryMB": 0, "diskSizeMB": 0,
			"spawnCount": 0, "buildCount": 1,
		})
	}
	sendJSON(x.w, http.StatusOK, list)
}

// metrics answers with one sample, of now.
func (x *exchange) metrics(id string) {
	sandbox, ok := x.find(id)
	if !ok {
		return
	}
	samples := []map[string]any{}
	if sandbox.Status.State == lifecycle.StateRunning {
		found := x.ask(http.MethodGet, sandboxesPath+"/"+id+"/proxy/"+strconv.Itoa(lifecycle.DaemonPort)+"/metrics", nil, nil)
		var now struct {
			Processors float64 `json:"cpu_count"`
			Used       float64 `json:"cpu_used_pct"`
			Memory     float64 `json:"mem_total_mib"`
			MemoryUsed float64 `json:"mem_used_mib"`
			Cache      float64 `json:"mem_cache_mib"`
			Disk       float64 `json:"disk_total_mib"`
			DiskUsed   float64 `json:"disk_used_mib"`
			Timestamp  int64   `json:"timestamp"`
		}
		if !found.OK() || json.Unmarshal(found.Body.Bytes(), &now) != nil {
			x.refuse(found)
			return
		}
		const mebibyte = 1 << 20
		at := time.UnixMilli(now.Timestamp).UTC()
		samples = append(samples, map[string]any{
			"timestamp": stamp(at), "timestampUnix": at.Unix(), "cpuCount": int64(now.Processors + 0.999), "cpuUsedPct": now.Used,
			"memTotal": int64(now.Memory * mebibyte), "memUsed": int64(now.MemoryUsed * mebibyte), "memCache": int64(now.Cache * mebibyte),
			"diskUsed": int64(now.DiskUsed * mebibyte), "diskTotal": int64(now.Disk * mebibyte),
		})
	}
	sendJSON(x.w, http.StatusOK, samples)
}

// logLine is a line of a sandbox's log. Clients read Line as JSON.
type logLine struct {
	Timestamp string `json:"timestamp"`
	Line      string `json:"line"`
}

// logs answers with the last lines that the main program printed. The service does not know when it
// printed each.
func (x *exchange) logs(id string) {
	sandbox, ok := x.find(id)
	if !ok {
		return
	}
	const lines = "1000"
	found := x.ask(http.MethodGet, sandboxesPath+"/"+id+"/logs", url.Values{"tail": {lines}}, nil)
	if !found.OK() || found.TooLarge {
		x.refuse(found)
		return
	}
	printed := []logLine{}
	for line := range strings.Lines(found.Body.String()) {
		message, err := json.Marshal(map[string]string{"level": "info", "message": strings.TrimSuffix(line, "\n")})
		if err != nil {
			panic(err) // a text can be encoded
		}
		printed = append(printed, logLine{Timestamp: stamp(sandbox.CreatedAt), Line: string(message)})
	}
	sendJSON(x.w, http.StatusOK, map[string]any{"logs": printed, "logEntries": []string{}})
}
