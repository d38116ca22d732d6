export default function InboxPage() { return <div className="page"><h1>InboxPage</h1></div>; }
