package sandboxhttp

// Connected is connected.
var Connected = connected
