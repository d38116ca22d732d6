export default function ChatPage({ graph, thread }: { graph: string | null; thread: string | null }) { return <div className="page"><h1>{graph} {thread}</h1></div>; }
