package e2b

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"sandbox.internal/server/lifecycle"
)

const (
	nextHeader = "X-Next-Token"
	// defaultLimit and maxLimit are how many sandboxes a page of a client has.
	defaultLimit, maxLimit = 100, 1000
	// maxPasses is how often a list is read again because sandboxes ended while it was read.
	maxPasses = 3
	// maxPassed bounds what is taken from a cursor of a client as a number of sandboxes.
	maxPassed = 1 << 30
)

// selection is what a client wants a list of.
type selection struct {
	states     []lifecycle.State
	metadata   url.Values // of a query of the service
	limit      int
	ascending  bool
	after      *cursor
	from       time.Time // of the starts, inclusive; zero for all
	template   string
	everything bool // no pages
}

// paged reports whether the service's pages are as long as the client's: those of a list with the
// oldest first, or with most of the sandboxes left out, are not.
func (s selection) paged() bool { return !s.everything && !s.ascending && s.template == "" }

// cursor is the last sandbox of a page: the next one continues behind it, whatever was created or
// has ended since.
type cursor struct {
	CreatedAt time.Time `json:"c"`
	ID        string    `json:"i"`
	// Passed is how many sandboxes the service listed before the next page, newest first, when this
	// one was read: the next page is looked for there first. 0 where that is not known.
	Passed int `json:"p,omitempty"`
}

func (c cursor) String() string {
	text, err := json.Marshal(c)
	if err != nil {
		panic(err) // a time and a text can be encoded
	}
	return base64.RawURLEncoding.EncodeToString(text)
}

func parseCursor(text string) (*cursor, error) {
	var c cursor
	decoded, err := base64.RawURLEncoding.DecodeString(text)
	if err != nil || json.Unmarshal(decoded, &c) != nil {
		return nil, fmt.Errorf("nextToken: is not one that this service gave")
	}
	return &c, nil
}

// before reports whether the sandbox comes before the cursor's, newest first.
func (c cursor) before(s lifecycle.Sandbox) bool {
	if order := c.CreatedAt.Compare(s.CreatedAt); order != 0 {
		return order < 0
	}
	return s.ID < c.ID
}

// is reports whether the sandbox is the cursor's.
func (c cursor) is(s lifecycle.Sandbox) bool { return s.ID == c.ID && s.CreatedAt.Equal(c.CreatedAt) }

// list answers with the sandboxes that the client may see.
func (x *exchange) list() {
	wanted, err := x.selection()
	if err != nil {
		sendProblem(x.w, http.StatusBadRequest, err.Error())
		return
	}
	read, ok := x.collect(wanted)
	if !ok {
		return
	}
	found := read.found
	if wanted.ascending {
		slices.Reverse(found)
	}
	if at := wanted.after; at != nil {
		found = slices.DeleteFunc(found, func(s numbered) bool {
			return at.is(s.Sandbox) || at.before(s.Sandbox) != wanted.ascending
		})
	}
	if !wanted.everything && (read.more || len(found) > wanted.limit) {
		found = found[:wanted.limit]
		last := found[len(found)-1]
		x.w.Header().Set(nextHeader, cursor{last.CreatedAt, last.ID, last.place}.String())
	}
	shown := make([]info, 0, len(found))
	for _, sandbox := range found {
		shown = append(shown, infoOf(sandbox.Sandbox))
	}
	sendJSON(x.w, http.StatusOK, shown)
}

// selection reads the query.
func (x *exchange) selection() (selection, error) {
	query, err := url.ParseQuery(x.r.URL.RawQuery)
	if err != nil {
		return selection{}, fmt.Errorf("query: %w", err)
	}
	wanted := selection{limit: defaultLimit, template: query.Get("template")}
	for name := range query {
		if !slices.Contains([]string{"state", "metadata", "limit", "nextToken", "order", "startedAfter", "template"}, name) {
			return selection{}, fmt.Errorf("query parameter %.64s: is not supported by this service", name)
		}
	}
	if !strings.HasPrefix(x.r.URL.Path, "/v2/") { // of old clients: those that run, in one list
		wanted.everything = true
		wanted.states = []lifecycle.State{lifecycle.StateRunning, lifecycle.StatePausing}
	}
	if text := query.Get("limit"); text != "" {
		if wanted.limit, err = strconv.Atoi(text); err != nil || wanted.limit < 1 || wanted.limit > maxLimit {
			return selection{}, fmt.Errorf("limit: must be a whole number within 1 and %d, not %.32q", maxLimit, text)
		}
	}
	if text := query.Get("nextToken"); text != "" {
		if wanted.after, err = parseCursor(text); err != nil {
			return selection{}, err
		}
	}
	switch order := query.Get("order"); order {
	case "", "desc":
	case "asc":
		wanted.ascending = true
	default:
		return selection{}, fmt.Errorf("order: must be asc or desc, not %.32q", order)
	}
	if text := query.Get("startedAfter"); text != "" {
		if wanted.from, err = time.Parse(time.RFC3339Nano, text); err != nil {
			return selection{}, fmt.Errorf("startedAfter: must be an RFC 3339 time, not %.64q", text)
		}
	}
	if wanted.metadata, err = metadataFilter(query.Get("metadata")); err != nil {
		return selection{}, err
	}
	states, err := statesOf(query["state"])
	if len(states) > 0 {
		wanted.states = states
	}
	if len(wanted.states) == 0 {
		wanted.states = []lifecycle.State{
			lifecycle.StateRunning, lifecycle.StatePausing, lifecycle.StatePaused, lifecycle.StateResuming,
		}
	}
	return wanted, err
}

// statesOf returns the service's states for E2B's, which are joined by commas.
func statesOf(names []string) (states []lifecycle.State, err error) {
	for _, list := range names {
		for name := range strings.SplitSeq(list, ",") {
			switch name {
			case "running":
				states = append(states, lifecycle.StateRunning, lifecycle.StatePausing)
			case "paused":
				states = append(states, lifecycle.StatePaused, lifecycle.StateResuming)
			default:
				return nil, fmt.Errorf("state: must be running or paused, not %.32q", name)
			}
		}
	}
	return states, nil
}

// metadataFilter returns the filter of the service for one of E2B, whose clients escape keys and
// values, join them as a query, and escape the whole once more.
func metadataFilter(text string) (url.Values, error) {
	if text == "" {
		return nil, nil
	}
	pairs, err := url.ParseQuery(text)
	if err != nil {
		return nil, fmt.Errorf("metadata: must be pairs of key=value, each side percent-encoded")
	}
	filter := url.Values{}
	for key, values := range pairs {
		name, err := url.PathUnescape(key)
		if err != nil {
			name = key
		}
		for _, value := range values {
			if unescaped, err := url.PathUnescape(value); err == nil {
				value = unescaped
			}
			filter.Add(name, value)
		}
	}
	return url.Values{"metadata": {filter.Encode()}}, nil
}

// numbered is a sandbox of a selection, and how many sandboxes the service lists up to it.
type numbered struct {
	lifecycle.Sandbox
	place int
}

// reading is what was read of the service's list for a selection.
type reading struct {
	found []numbered // newest first
	// more: the limit of the selection is behind its cursor, and the service has further ones.
	more bool
	// whole: no sandbox ended between two pages. What moved to an earlier page then may be missing.
	whole bool
}

// collect reads the sandboxes of a selection: all, or from before its cursor on until its limit is
// reached. When it reports false, the client has been answered.
func (x *exchange) collect(wanted selection) (reading, bool) {
	for pass := 1; ; pass++ {
		read, ok := x.collectOnce(wanted)
		if !ok || read.whole || pass == maxPasses {
			return read, ok
		}
	}
}

func (x *exchange) collectOnce(wanted selection) (read reading, ok bool) {
	page, ok := x.firstPage(wanted)
	if !ok {
		return read, false
	}
	seen, behind := map[string]bool{}, 0
	for read.whole = true; ; {
		for i, item := range page.Items {
			sandbox := item.sandbox()
			if seen[sandbox.ID] || sandbox.CreatedAt.Before(wanted.from) ||
				wanted.template != "" && infoOf(sandbox).TemplateID != wanted.template {
				continue
			}
			seen[sandbox.ID] = true
			read.found = append(read.found, numbered{sandbox, (page.number-1)*page.size + i + 1})
			if at := wanted.after; at == nil || !at.is(sandbox) && !at.before(sandbox) {
				behind++
			}
		}
		// A start may end the list before the service's ends.
		read.more = wanted.paged() && behind == wanted.limit && !page.last() && wanted.from.IsZero()
		if read.more || page.last() || wanted.paged() && behind > wanted.limit {
			return read, true
		}
		next, ok := x.page(wanted, page.number+1)
		if !ok {
			return read, false
		}
		read.whole = read.whole && next.Pagination.TotalItems >= page.Pagination.TotalItems
		page = next
	}
}

// firstPage returns the service's page that the selection begins in, or an earlier one: that with
// the sandbox of the cursor, or one that comes before it, or the first.
func (x *exchange) firstPage(wanted selection) (page servicePage, ok bool) {
	number := 1
	if wanted.paged() && wanted.after != nil {
		// The text of a cursor is the client's: what it says is a guess.
		number = 1 + min(max(0, wanted.after.Passed-1), maxPassed)/wanted.limit
	}
	for tries := 1; ; tries++ {
		page, ok = x.page(wanted, number)
		if !ok || number == 1 {
			return page, ok
		}
		if len(page.Items) > 0 {
			if first := page.Items[0].sandbox(); wanted.after.is(first) || wanted.after.before(first) {
				return page, true
			}
		}
		number--
		if last := (page.Pagination.TotalItems + page.size - 1) / page.size; tries == maxPasses {
			number = 1
		} else {
			number = max(1, min(number, last))
		}
	}
}

// servicePage is a page of the service's own list, newest first.
type servicePage struct {
	Items      []listed `json:"items"`
	Pagination struct {
		TotalItems int `json:"totalItems"`
	} `json:"pagination"`
	number, size int
}

// last reports whether no page follows.
func (p servicePage) last() bool { return p.number*p.size >= p.Pagination.TotalItems }

// page reads a page of the service's list of the selection's states and metadata. When it reports
// false, the client has been answered.
func (x *exchange) page(wanted selection, number int) (page servicePage, ok bool) {
	page.number, page.size = number, lifecycle.MaxPageSize
	if wanted.paged() {
		page.size = wanted.limit
	}
	query := url.Values{"page": {strconv.Itoa(number)}, "pageSize": {strconv.Itoa(page.size)}}
	for _, state := range wanted.states {
		query.Add("state", string(state))
	}
	if filter := wanted.metadata.Get("metadata"); filter != "" {
		query.Set("metadata", filter)
	}
	response := x.ask(http.MethodGet, sandboxesPath, query, nil)
	if !response.OK() || response.TooLarge || json.Unmarshal(response.Body.Bytes(), &page) != nil {
		x.refuse(response)
		return page, false
	}
	return page, true
}

// listed is a sandbox in a list of the service.
type listed struct {
	ID    string `json:"id"`
	Image struct {
		URI string `json:"uri"`
	} `json:"image"`
	Status struct {
		State lifecycle.State `json:"state"`
	} `json:"status"`
	Metadata  map[string]string `json:"metadata"`
	CreatedAt time.Time         `json:"createdAt"`
	ExpiresAt time.Time         `json:"expiresAt"`
	Limits    struct {
		CPUMillis   int64 `json:"cpuMillis"`
		MemoryBytes int64 `json:"memoryBytes"`
	} `json:"limits"`
}

func (l listed) sandbox() lifecycle.Sandbox {
	const nanoPerMilli = 1_000_000
	return lifecycle.Sandbox{
		ID: l.ID, Image: l.Image.URI, Status: lifecycle.Status{State: l.Status.State}, Metadata: l.Metadata,
		CreatedAt: l.CreatedAt, ExpiresAt: l.ExpiresAt,
		Limits: lifecycle.Limits{NanoCPUs: l.Limits.CPUMillis * nanoPerMilli, MemoryBytes: l.Limits.MemoryBytes},
	}
}
