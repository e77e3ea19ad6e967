package compat

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"sandbox.internal/server/internal/subrequest"
	"sandbox.internal/server/lifecycle"
)

const (
	// The bounds of OpenSandbox for what one request may ask for, and its defaults.
	defaultLogLines, maxLogLines = 100, 10000
	defaultEvents, maxEvents     = 50, 500
	summaryLogLines              = 50
	summaryEvents                = 20
	// maxDiagnostics is how many bytes one log or list of events has at most in an answer: the
	// newest.
	maxDiagnostics = 1 << 20
	plainText      = "text/plain; charset=utf-8"
)

// diagnosis is what is reported of a sandbox.
type diagnosis struct {
	*exchange
	id string
}

// diagnostics returns what answers for each of the diagnostics of a sandbox.
func (x *exchange) diagnostics(id string) map[string]func() {
	d := diagnosis{x, id}
	return map[string]func(){
		"logs":    func() { d.describe("logs", "container") },
		"events":  func() { d.describe("events", "runtime") },
		"inspect": func() { d.plain(false, d.inspect) },
		"summary": func() { d.plain(false, d.summary) },
	}
}

// descriptor is what OpenSandbox answers about diagnostics.
type descriptor struct {
	SandboxID     string   `json:"sandboxId"`
	Kind          string   `json:"kind"`
	Scope         string   `json:"scope"`
	Delivery      string   `json:"delivery"`
	ContentType   string   `json:"contentType"`
	Content       string   `json:"content"`
	ContentLength int      `json:"contentLength"` // in bytes
	Truncated     bool     `json:"truncated"`
	Warnings      []string `json:"warnings,omitempty"`
}

// describe answers with a descriptor of the log or the events. There is one scope of each kind, and
// all for all of them. Without a scope the answer is the text, which OpenSandbox has deprecated.
func (d diagnosis) describe(kind, only string) {
	query := d.r.URL.Query()
	read := map[string]func(url.Values) (string, bool, *answer){"logs": d.log, "events": d.events}[kind]
	if !query.Has("scope") {
		d.plain(true, func() (string, *answer) {
			text, _, refused := read(query)
			return text, refused
		})
		return
	}
	asked := query.Get("scope")
	scope := strings.ToLower(strings.TrimSpace(asked))
	if scope != only && scope != "all" {
		d.refuse("DIAGNOSTICS_SCOPE_UNSUPPORTED",
			fmt.Sprintf("Unsupported %s diagnostics scope '%.128s'. Supported scopes: %s, all.", kind, asked, only))
		return
	}
	// What selects a part is of the requests without a scope.
	content, truncated, refused := read(nil)
	if refused != nil {
		d.sendUnlessGone(refused)
		return
	}
	found := descriptor{
		SandboxID: d.id, Kind: kind, Scope: scope, Delivery: "inline", ContentType: plainText,
		Content: content, ContentLength: len(content), Truncated: truncated,
	}
	if scope == "all" {
		found.Warnings = []string{fmt.Sprintf("only the scope %s contributes to the %s of all scopes", only, kind)}
	}
	d.newAnswer().sendJSON(d.w, found)
}

// newAnswer returns an answer without content, with the id of the request.
func (d diagnosis) newAnswer() *answer {
	a := &answer{exchange: d.exchange, Response: subrequest.NewResponse(d.w)}
	a.Status = http.StatusOK
	a.Header().Set(requestIDHeader, d.exchange.id)
	return a
}

// plain answers with a text, or with the service's refusal.
func (d diagnosis) plain(deprecated bool, read func() (string, *answer)) {
	text, refused := read()
	if refused != nil {
		d.sendUnlessGone(refused)
		return
	}
	a := d.newAnswer()
	a.Header().Set("Content-Type", plainText)
	a.Header().Set("X-Content-Type-Options", "nosniff") // the output of a sandbox is never an HTML page
	if deprecated {
		a.Header().Set("Deprecation", "true")
	}
	a.Body.WriteString(text)
	a.send(d.w)
}

// number returns a parameter that is a whole number within 1 and most, or what stands for none.
func (d diagnosis) number(query url.Values, name string, none, most int) (int, *answer) {
	if !query.Has(name) {
		return none, nil
	}
	number, err := strconv.Atoi(query.Get(name))
	if err != nil || number < 1 || number > most {
		a := d.ask(http.MethodGet, "/v1/version", nil, nil) // which has the request's id
		a.Status = http.StatusBadRequest
		a.Body.Reset()
		a.Header().Set("Content-Type", "application/json")
		a.Body.Write(encode(problem{Code: codeInvalidParameter, Message: fmt.Sprintf("query/%s: must be a whole number within 1 and %d", name, most)}))
		return 0, a
	}
	return number, nil
}

// log returns the last lines of the sandbox's log, and whether there are others.
func (d diagnosis) log(query url.Values) (text string, truncated bool, refused *answer) {
	lines, refused := d.number(query, "tail", defaultLogLines, maxLogLines)
	if refused != nil {
		return "", false, refused
	}
	if _, refused := d.sandbox(); refused != nil {
		return "", false, refused
	}
	wanted := url.Values{"tail": {strconv.Itoa(lines + 1)}}
	if query.Has("since") {
		wanted.Set("since", d.edge.Clock().Add(-ago(query.Get("since"))).UTC().Format(time.RFC3339))
	}
	found := d.ask(http.MethodGet, sandboxesPath+"/"+d.id+"/logs", wanted, nil)
	if !found.OK() {
		return "", false, found
	}
	if found.TooLarge { // the lines are too long for the answer, so there is none of them
		return fmt.Sprintf("(the last %d lines have more than %d MiB: ask for fewer)", lines, subrequest.MaxResponse>>20), true, nil
	}
	text, truncated = lastLines(found.Body.Bytes(), lines)
	if text == "" {
		text = "(no logs)"
	}
	return text, truncated, nil
}

// ago returns what OpenSandbox takes a duration such as 10m, 1h or 1d for: ten minutes when it is
// malformed.
func ago(text string) time.Duration {
	match := agoFormat.FindStringSubmatch(strings.ToLower(text))
	if match == nil {
		return 10 * time.Minute
	}
	number, _ := strconv.Atoi(match[1]) // at most nine digits
	unit := map[string]time.Duration{"s": time.Second, "m": time.Minute, "h": time.Hour, "d": 24 * time.Hour}[match[2]]
	if most := 10 * 365 * 24 * time.Hour; time.Duration(number) > most/unit {
		return most
	}
	return time.Duration(number) * unit
}

var agoFormat = regexp.MustCompile(`^\s*([0-9]{1,9})\s*([smhd])\s*$`)

// lastLines returns the last lines of a text in UTF-8, and whether it has others.
func lastLines(content []byte, lines int) (text string, truncated bool) {
	end := len(bytes.TrimSuffix(content, []byte("\n")))
	begin := end
	for ; lines > 0 && begin > 0; lines-- {
		begin = bytes.LastIndexByte(content[:begin], '\n')
		if begin < 0 {
			begin = 0
			break
		}
		if lines == 1 {
			begin++
			truncated = true
		}
	}
	if len(content)-begin > maxDiagnostics {
		begin, truncated = len(content)-maxDiagnostics, true
	}
	return strings.ToValidUTF8(string(content[begin:]), "\uFFFD"), truncated
}

// sandbox returns the sandbox if these clients can see it, or the service's refusal. Of one that
// failed they see the diagnostics alone.
func (d diagnosis) sandbox() (object, *answer) {
	found := d.ask(http.MethodGet, sandboxesPath+"/"+d.id, nil, nil)
	var sandbox object
	var state stateOf
	if !found.OK() || json.Unmarshal(found.Body.Bytes(), &sandbox) != nil || json.Unmarshal(found.Body.Bytes(), &state) != nil {
		return nil, found
	}
	if state.gone() && state.Status.State != lifecycle.StateFailed {
		found.Status = http.StatusConflict // which the caller explains
		return nil, found
	}
	return fromSandbox(sandbox), nil
}

// events returns the last events of the sandbox, a line for each, and whether there were others.
func (d diagnosis) events(query url.Values) (text string, truncated bool, refused *answer) {
	limit, refused := d.number(query, "limit", defaultEvents, maxEvents)
	if refused != nil {
		return "", false, refused
	}
	// The service refuses who may not read the sandbox.
	if _, refused := d.sandbox(); refused != nil {
		return "", false, refused
	}
	lines, err := d.readEvents()
	if err != nil {
		d.edge.Logger.Warn().Err(err).Str("sandbox_id", d.id).Msg("cannot read the events of a sandbox for its diagnostics")
		return "(the events cannot be read)", true, nil
	}
	if len(lines) > limit {
		lines, truncated = lines[len(lines)-limit:], true
	}
	if len(lines) == 0 {
		return "(no notable events)", truncated, nil
	}
	return strings.Join(lines, "\n"), truncated, nil
}

// eventsWait bounds how long events are read from the store.
const eventsWait = 10 * time.Second

// readEvents returns a line for each of the sandbox's last events.
func (d diagnosis) readEvents() ([]string, error) {
	ctx, cancel := context.WithTimeout(d.r.Context(), eventsWait)
	defer cancel()
	feed, err := d.edge.Backend.Events(ctx, lifecycle.EventSelection{SandboxID: d.id})
	if err != nil {
		return nil, err
	}
	defer feed.Close()
	// Only the first batch is there at once: the next may wait for what has yet to happen.
	batch, err := feed.Next(ctx)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	lines := make([]string, 0, len(batch.Events))
	for _, event := range batch.Events {
		if line := eventLine(event); line != "" {
			lines = append(lines, line)
		}
	}
	if len(lines) > maxEvents {
		lines = lines[len(lines)-maxEvents:]
	}
	return lines, nil
}

// eventLine returns an event as a line, "" for one that these clients need not see.
func eventLine(event lifecycle.Event) string {
	words := []string{event.Time.UTC().Format(time.RFC3339), "runtime"}
	switch event.Type {
	case lifecycle.EventState:
		kind := "Normal"
		if event.To == lifecycle.StateFailed {
			kind = "Warning"
		}
		words = append(words, kind, string(event.To), string(event.Reason), oneLine(event.Message))
	case lifecycle.EventStage:
		words = append(words, "Normal", "Stage", string(event.Stage), "after "+event.Elapsed.Round(time.Millisecond).String())
	case lifecycle.EventRenewed:
		words = append(words, "Normal", "Renewed", "until", event.ExpiresAt.UTC().Format(time.RFC3339))
	case lifecycle.EventPolicy:
		words = append(words, "Normal", "NetworkPolicyChanged")
	default:
		return ""
	}
	return strings.Join(slices.DeleteFunc(words, func(word string) bool { return word == "" }), " ")
}

// maxMessage is how many bytes of an event's message are in its line.
const maxMessage = 1024

func oneLine(text string) string {
	text, _, _ = strings.Cut(text, "\n")
	if len(text) > maxMessage {
		text = text[:maxMessage]
	}
	return strings.ToValidUTF8(text, "\uFFFD")
}

// inspect returns the sandbox as lines. It has no variables: their values may be secrets.
func (d diagnosis) inspect() (string, *answer) {
	sandbox, refused := d.sandbox()
	if refused != nil {
		return "", refused
	}
	var s struct {
		Image      struct{ URI string }
		Status     struct{ State, Reason, Message, LastTransitionAt string }
		Entrypoint []string
		Metadata   map[string]string
		CreatedAt  string
		ExpiresAt  string
	}
	if err := json.Unmarshal(encode(sandbox), &s); err != nil {
		return "", d.newAnswer() // the service wrote it
	}
	var out strings.Builder
	line := func(name, value string) {
		if value != "" {
			fmt.Fprintf(&out, "%-16s%s\n", name+":", value)
		}
	}
	line("Sandbox ID", d.id)
	line("Image", s.Image.URI)
	line("Status", s.Status.State)
	line("Reason", s.Status.Reason)
	line("Message", oneLine(s.Status.Message))
	line("Since", s.Status.LastTransitionAt)
	line("Created At", s.CreatedAt)
	line("Expires At", s.ExpiresAt)
	line("Entrypoint", string(encode(s.Entrypoint)))
	if len(s.Metadata) > 0 {
		out.WriteString("\nMetadata:\n")
		for _, pair := range sortedPairs(s.Metadata) {
			fmt.Fprintf(&out, "  %s\n", pair)
		}
	}
	return out.String(), nil
}

func sortedPairs(metadata map[string]string) []string {
	pairs := make([]string, 0, len(metadata))
	for key, value := range metadata {
		pairs = append(pairs, oneLine(key+"="+value))
	}
	slices.Sort(pairs)
	return pairs
}

// summary returns all of it in one text.
func (d diagnosis) summary() (string, *answer) {
	query := d.r.URL.Query()
	lines, refused := d.number(query, "tail", summaryLogLines, maxLogLines)
	if refused != nil {
		return "", refused
	}
	events, refused := d.number(query, "event_limit", summaryEvents, maxEvents)
	if refused != nil {
		return "", refused
	}
	inspected, refused := d.inspect()
	if refused != nil {
		return "", refused
	}
	happened, _, refused := d.events(url.Values{"limit": {strconv.Itoa(events)}})
	if refused != nil {
		return "", refused
	}
	printed, _, refused := d.log(url.Values{"tail": {strconv.Itoa(lines)}})
	if refused != nil {
		return "", refused
	}
	heading := strings.Repeat("=", 72)
	out := []string{heading, "SANDBOX DIAGNOSTICS SUMMARY", "Sandbox ID: " + d.id, heading}
	for _, section := range []struct{ title, text string }{
		{"INSPECT", inspected}, {"EVENTS", happened}, {fmt.Sprintf("LOGS (last %d lines)", lines), printed},
	} {
		rule := strings.Repeat("-", 40)
		out = append(out, "", rule, section.title, rule, strings.TrimSuffix(section.text, "\n"))
	}
	return strings.Join(out, "\n") + "\n", nil
}
